// A client that sends 64 bytes to an echo server on 127.0.0.1 and reads them back, blocking, for some seconds; prints round trips per
// second.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc != 3) return 1;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int s = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(s, (struct sockaddr *)&to, sizeof to)) {
        perror("connect");
        return 1;
    }
    char out[64], in[64];
    long trips = 0;
    double start = now(), end = start + atof(argv[2]), seen = start;
    while (seen < end) {
        for (int i = 0; i < 16; i++, trips++) {
            memset(out, 'a' + trips % 26, sizeof out);
            if (write(s, out, sizeof out) != sizeof out) return 2;
            for (size_t got = 0; got < sizeof in;) {
                ssize_t n = read(s, in + got, sizeof in - got);
                if (n <= 0) return 3;
                got += n;
            }
            if (memcmp(in, out, sizeof in)) return 4;
        }
        seen = now();
    }
    printf("%.1f\n", trips / (seen - start));
    return 0;
}
