/* Runs a rank so that its launcher learns of its violent death only after a while: what the other ranks notice before that, they
   noticed by themselves. The descriptor to the launcher stays open here.
   usage: hold SECONDS PROGRAM ARGUMENTS */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    int status = 0;
    pid_t child = count > 2 ? fork() : -1;
    if (child == 0) {
        execvp(arguments[2], arguments + 2);
        perror(arguments[2]);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("hold");
        return 126;
    }
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    sleep((unsigned)atoi(arguments[1]));
    raise(WTERMSIG(status));
    return 126;
}
