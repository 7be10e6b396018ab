/* Handles and arguments that are wrong, each in every call that takes one; and a forked child. Nothing may crash, all must be told. */
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

static void nothing(void *user, mdg_handle handle, int64_t result)
{
    (void)user;
    (void)handle;
    (void)result;
}

/* Every call that takes a handle fails so with this one, unless it is of the kind that is left out. */
static void all_fail(mdg_handle handle, int code, char but)
{
    char buf[16];
    int64_t result;
    mdg_handle out = 0;
    if (but != 'r') {
        CHECK(mdg_listen(handle, "loopback://x", &out) == code);
        CHECK(mdg_serve(handle, "x", &out) == code);
        CHECK(mdg_connect(handle, "loopback://x", 0, &out) == code);
        CHECK(mdg_post_connect(handle, "loopback://x", NULL, NULL, &out) == code);
        CHECK(mdg_post_connect(handle, "loopback://x", nothing, NULL, NULL) == code);
        CHECK(mdg_turn(handle, 0) == code);
        CHECK(mdg_call(handle) == code);
        CHECK(mdg_fd(handle) == code);
        CHECK(mdg_watch_open(handle, 0, 1, nothing, NULL, &out) == code);
        CHECK(mdg_timer_open(handle, 1, 1, nothing, NULL, &out) == code);
        CHECK(mdg_set_weight(handle, "tcp", 1) == code);
        CHECK(mdg_work_done(handle, "tcp") == code);
        CHECK(mdg_set_kernel_every(handle, 1) == code);
        CHECK(mdg_set_spin(handle, 1) == code);
    }
    if (but != 'l') {
        CHECK(mdg_read(handle, buf, sizeof buf, 0) == code);
        CHECK(mdg_write(handle, buf, sizeof buf, 0) == code);
        CHECK(mdg_post_read(handle, buf, sizeof buf, NULL, NULL, &out) == code);
        CHECK(mdg_post_write(handle, buf, sizeof buf, NULL, NULL, &out) == code);
        CHECK(mdg_post_close(handle, NULL, NULL, &out) == code);
        CHECK(mdg_post_close(handle, nothing, NULL, NULL) == code);
    }
    if (but != 'a') {
        CHECK(mdg_accept(handle, 0, &out) == code);
        CHECK(mdg_post_accept(handle, NULL, NULL, &out) == code);
        CHECK(mdg_post_accept(handle, nothing, NULL, NULL) == code);
    }
    if (but != 'o') {
        CHECK(mdg_test(handle, &result) == code);
        CHECK(mdg_wait(handle, 0, &result) == code);
        CHECK(mdg_cancel(handle) == code);
    }
    if (but != 'w')
        CHECK(mdg_watch_change(handle, 1) == code);
    CHECK(out == 0 && strlen(mdg_error_text()) > 0);
    if (code != MDG_ETYPE) {
        CHECK(mdg_close(handle) == code);
        CHECK(mdg_why(handle, buf, sizeof buf) == code);
        CHECK(mdg_address(handle, buf, sizeof buf) == code);
    }
}

static void wrong_arguments(mdg_runtime runtime, mdg_link link)
{
    char buf[16];
    int64_t result;
    mdg_handle out = 0;
    CHECK(mdg_runtime_open(NULL) == MDG_EINVAL);
    CHECK(mdg_listen(runtime, NULL, &out) == MDG_EINVAL);
    CHECK(mdg_listen(runtime, "loopback://x", NULL) == MDG_EINVAL);
    CHECK(mdg_listen(runtime, "\xff\xfe", &out) == MDG_EINVAL);
    CHECK(mdg_listen(runtime, "no address", &out) == MDG_EADDRESS);
    CHECK(strstr(mdg_error_text(), "`no address` is not a locator") != NULL);
    CHECK(mdg_listen(runtime, "nothing://x", &out) == MDG_ENODRIVER);
    CHECK(mdg_listen(runtime, "tcp://x", &out) == MDG_EADDRESS);
    CHECK(mdg_connect(runtime, "nothing://x", 0, &out) == MDG_ENODRIVER);
    CHECK(mdg_connect(runtime, "madrigal:rubbish", 0, &out) == MDG_EADDRESS);
    CHECK(mdg_connect(runtime, "loopback://nobody-is-there", MDG_FOREVER, &out) == MDG_EREFUSED);
    CHECK(strstr(mdg_error_text(), "loopback://nobody-is-there") != NULL && mdg_error_number() == 111);
    CHECK(strstr(mdg_error_text(), "errno 111") != NULL);
    CHECK(mdg_read(link, NULL, 5, 0) == MDG_EINVAL);
    CHECK(mdg_write(link, buf, SIZE_MAX, 0) == MDG_EINVAL);
    CHECK(mdg_post_read(link, buf, 1, NULL, NULL, NULL) == MDG_EINVAL);
    CHECK(mdg_post_read(link, buf, 1, nothing, NULL, &out) == MDG_EINVAL);
    CHECK(mdg_why(link, NULL, 5) == MDG_EINVAL);
    CHECK(mdg_test(link, NULL) == MDG_EINVAL);
    CHECK(mdg_watch_open(runtime, -1, 1, nothing, NULL, &out) == MDG_EINVAL);
    CHECK(mdg_watch_open(runtime, 1000000, 1, nothing, NULL, &out) == MDG_ESYSTEM && mdg_error_number() == 9);
    CHECK(mdg_watch_open(runtime, 0, 1, NULL, NULL, &out) == MDG_EINVAL);
    CHECK(mdg_set_weight(runtime, "no such class", 1) == MDG_EINVAL);
    CHECK(strstr(mdg_error_text(), "descriptors") != NULL);
    CHECK(out == 0);
    CHECK(mdg_write(link, NULL, 0, MDG_FOREVER) == 0);
    CHECK(mdg_read(link, buf, sizeof buf, 0) == MDG_ETIMEDOUT);
    CHECK(mdg_read(link, buf, sizeof buf, 1000000) == MDG_ETIMEDOUT);
    CHECK(mdg_why(link, NULL, 0) > 0 && mdg_why(link, buf, 4) > 4 && strlen(buf) == 3);
    (void)result;
}

static void in_a_child(mdg_runtime runtime, mdg_link link)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        mdg_runtime other;
        all_fail(runtime, MDG_EFORKED, ' ');
        all_fail(link, MDG_EFORKED, ' ');
        CHECK(mdg_runtime_open(&other) == MDG_EFORKED);
        CHECK(strstr(mdg_error_text(), "forked") != NULL && strstr(mdg_strerror(MDG_EFORKED), "forked") != NULL);
        _exit(7);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

int main(void)
{
    char byte = 'x', buf[256];
    int64_t result;
    mdg_runtime runtime;
    mdg_link client, server;
    mdg_acceptor acceptor;
    mdg_op op;
    mdg_timer timer;
    CHECK(mdg_turn(0, 0) == MDG_EHANDLE && mdg_close(1) == MDG_EHANDLE);
    CHECK(mdg_runtime_open(&runtime) == 0);
    join(runtime, "loopback://misuse", &client, &server);
    CHECK(mdg_listen(runtime, "loopback://misuse", &acceptor) == 0);
    CHECK(mdg_post_read(client, buf, sizeof buf, NULL, NULL, &op) == 0);
    CHECK(mdg_timer_open(runtime, 3600 * SECOND, 0, nothing, NULL, &timer) == 0);

    all_fail(0, MDG_EHANDLE, ' ');
    all_fail(~(uint64_t)0, MDG_EHANDLE, ' ');
    all_fail(runtime + 1, MDG_EHANDLE, ' ');
    all_fail(runtime, MDG_ETYPE, 'r');
    all_fail(client, MDG_ETYPE, 'l');
    all_fail(acceptor, MDG_ETYPE, 'a');
    all_fail(op, MDG_ETYPE, 'o');
    all_fail(timer, MDG_ETYPE, ' ');
    wrong_arguments(runtime, server);
    in_a_child(runtime, client);

    /* The child left nothing behind: the links work as before. */
    CHECK(mdg_write(server, &byte, 1, MDG_FOREVER) == 1);
    CHECK(mdg_wait(op, 10 * SECOND, &result) == 1 && result == 1 && buf[0] == 'x');
    all_fail(op, MDG_EHANDLE, ' ');

    /* What is closed is closed once. */
    CHECK(mdg_close(timer) == 0);
    all_fail(timer, MDG_EHANDLE, ' ');
    CHECK(mdg_close(client) == 0);
    all_fail(client, MDG_EHANDLE, ' ');
    CHECK(mdg_read(server, buf, sizeof buf, MDG_FOREVER) == 0);
    CHECK(mdg_close(runtime) == 0);
    all_fail(runtime, MDG_EHANDLE, ' ');
    all_fail(server, MDG_EHANDLE, ' ');
    all_fail(acceptor, MDG_EHANDLE, ' ');

    /* And another runtime is as good as the first. */
    CHECK(mdg_runtime_open(&runtime) == 0);
    join(runtime, "loopback://misuse", &client, &server);
    CHECK(mdg_close(runtime) == 0);
    CHECK(strcmp(mdg_strerror(0), "no error") == 0 && strlen(mdg_strerror(-9999)) > 0);
    CHECK(strcmp(mdg_version(), "0.1.0") >= 0);
    puts("good");
    return 0;
}
