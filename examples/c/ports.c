/* Two programs: `ports take` prints its port's address; `ports give ADDRESS` sends it a step of a simulation, whose record says what it is. */
#include <madrigal.h>
#include <stdio.h>
#include <string.h>

enum { POINTS = 1000 };
/* Both ends say so, or there is no connection. */
static const char *const type = "unit=kelvin";

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, mdg_error_text());
    return 1;
}

static int take(mdg_runtime runtime)
{
    char address[512], name[32];
    double field[POINTS];
    int32_t step;
    mdg_receive_port port;
    mdg_incoming message;

    if (mdg_receive_port_open(runtime, "steps", type, &port) < 0 || mdg_address(port, address, sizeof address) < 0)
        return failed("open");
    printf("%s\n", address);
    fflush(stdout);
    if (mdg_port_receive(port, MDG_FOREVER, &message) < 0)
        return failed("receive");
    if (mdg_get_record(message, MDG_ITEM_BEGIN) < 0 || mdg_get_text(message, name, sizeof name) < 0 ||
        mdg_get_number(message, MDG_INT32, &step) < 0 || mdg_get_record(message, MDG_ITEM_END) < 0 ||
        mdg_get_array(message, MDG_FLOAT64, field, POINTS) < 0 || mdg_incoming_end(message) < 0)
        return failed("read");
    printf("%s of step %d, %.1f at the end\n", name, (int)step, field[POINTS - 1]);
    return 0;
}

static int give(mdg_runtime runtime, const char *address)
{
    double field[POINTS];
    int32_t step = 7;
    mdg_send_port port;
    mdg_message message;

    for (int i = 0; i < POINTS; i++)
        field[i] = 273.0 + i / 100.0;
    if (mdg_send_port_open(runtime, "model", type, &port) < 0 || mdg_port_connect(port, address, INT64_C(10000000000)) < 0)
        return failed("connect");
    if (mdg_message_new(port, &message) < 0 || mdg_put_begin(message) < 0 || mdg_put_text(message, "temperature") < 0 ||
        mdg_put_number(message, MDG_INT32, &step) < 0 || mdg_put_end(message) < 0 ||
        mdg_put_array(message, MDG_FLOAT64, field, POINTS, MDG_CHEAPER) < 0)
        return failed("write");
    return mdg_port_send(port, message) < 0 ? failed("send") : 0;
}

int main(int argc, char **argv)
{
    int result = 2;
    mdg_runtime runtime;

    if (mdg_runtime_open(&runtime) < 0)
        return failed("open");
    if (argc == 2 && strcmp(argv[1], "take") == 0)
        result = take(runtime);
    else if (argc == 3 && strcmp(argv[1], "give") == 0)
        result = give(runtime, argv[2]);
    else
        fprintf(stderr, "usage: ports take | give ADDRESS\n");
    mdg_close(runtime);
    return result;
}
