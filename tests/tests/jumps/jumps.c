/* Leaves calls that wait by siglongjmp(3) out of a handler, at any time; every byte is there once, and in order. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static sigjmp_buf out;
static volatile sig_atomic_t inside;

static void on_alarm(int signal) {
    (void)signal;
    if (inside) {
        inside = 0;
        siglongjmp(out, 1);
    }
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void arm(long us) {
    struct itimerval timer = {{0, 0}, {0, us}};
    if (setitimer(ITIMER_REAL, &timer, NULL)) die("setitimer");
}

/* Sends numbers, with pauses, and reads what comes back. */
static int sender(struct sockaddr_in to, uint32_t numbers) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) die("connect");
    setsockopt(fd, IPPROTO_TCP, 1, &one, sizeof one);
    srand(2);
    for (uint32_t i = 0; i < numbers; i++) {
        if (send(fd, &i, sizeof i, 0) != sizeof i) die("send");
        if (rand() % 4 == 0) usleep(rand() % 300);
        if (i % 8 == 7) {
            char back;
            if (recv(fd, &back, 1, 0) != 1) die("the answer");
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    uint32_t numbers = argc > 1 ? atoi(argv[1]) : 20000, next = 0, jumps = 0;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, len) || listen(listener, 1)) die("listen");
    getsockname(listener, (struct sockaddr *)&at, &len);
    pid_t child = fork();
    if (child == 0) return sender(at, numbers);
    int fd = accept(listener, NULL, NULL), set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    if (fd < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("accept");
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    char part[4096];
    size_t have = 0;
    srand(1);
    for (uint32_t round = 0;; round++) {
        if (sigsetjmp(out, 1) == 0) {
            inside = 1;
            arm(1 + rand() % 400);
            struct pollfd poll_fd = {fd, POLLIN, 0};
            fd_set fds;
            FD_ZERO(&fds);
            FD_SET(fd, &fds);
            char byte;
            switch (round % 4) {
            case 0: poll(&poll_fd, 1, -1); break;
            case 1: epoll_wait(set, &event, 1, -1); break;
            case 2: select(fd + 1, &fds, NULL, NULL, NULL); break;
            case 3: recv(fd, &byte, 1, MSG_PEEK); break;
            }
            inside = 0;
        } else {
            jumps++;
        }
        arm(0);
        ssize_t n = recv(fd, part + have, sizeof part - have, MSG_DONTWAIT);
        if (n == 0) break;
        if (n < 0 && errno != EAGAIN) die("recv");
        if (n > 0) have += n;
        size_t used = 0;
        for (; have - used >= sizeof next; used += sizeof next) {
            if (memcmp(part + used, &next, sizeof next)) return fprintf(stderr, "number %u is wrong\n", next), 1;
            if (next++ % 8 == 7 && send(fd, "b", 1, 0) != 1) die("send back");
        }
        memmove(part, part + used, have -= used);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("%u numbers, %u jumps\n", next, jumps);
    return status != 0 || next != numbers || jumps == 0;
}
