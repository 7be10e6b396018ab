/* FastMessages: every node asks node 0 for its square, and gets it by a handler. madrigal run -n 4 ask */
#include <fm.h>
#include <stdio.h>

static unsigned square, answer;
static unsigned result, asked;

static int send_number(unsigned to, unsigned handler, unsigned number)
{
    FM_stream *message = FM_begin_message(to, sizeof number, handler);

    return message && FM_send_piece(message, &number, sizeof number) == 0 ? FM_end_message(message) : FM_ERROR;
}

static int on_square(FM_stream *message, unsigned sender)
{
    unsigned number;

    if (FM_receive(&number, message, sizeof number) < 0 || send_number(sender, answer, number * number) < 0)
        return FM_ERROR;
    asked++;
    return FM_CONTINUE;
}

static int on_answer(FM_stream *message, unsigned sender)
{
    (void)sender;
    return FM_receive(&result, message, sizeof result) < 0 ? FM_ERROR : FM_QUIT;
}

int main(void)
{
    if (FM_initialize() < 0) {
        fprintf(stderr, "%s\n", FM_error_text());
        return 1;
    }
    square = FM_register_handler(FM_HANDLER_ANY, on_square);
    answer = FM_register_handler(FM_HANDLER_ANY, on_answer);
    if (FM_nodeid() > 0 && send_number(0, square, FM_nodeid() + 2) < 0)
        return 1;
    while (FM_nodeid() > 0 ? result == 0 : asked < FM_numnodes() - 1)
        if (FM_extract(1) < 0)
            return 1;
    if (FM_nodeid() > 0)
        printf("%u squared is %u\n", FM_nodeid() + 2, result);
    return FM_finalize() < 0;
}
