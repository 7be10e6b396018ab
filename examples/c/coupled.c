/* A simulation of two codes: an ocean and the air above it, which exchange a field in every step. `coupled ocean` prints an address;
 * `coupled air ADDRESS`, on the same host or at another site, joins it. */
#include <madrigal.h>
#include <stdio.h>
#include <string.h>

enum { CELLS = 10000, STEPS = 20 };
/* The share of the difference that passes from one to the other in a step. */
static const double exchange = 0.25;
/* Both ends say so, or there is no connection. */
static const char *const type = "unit=kelvin";
static const int64_t patience = INT64_C(30000000000);

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, mdg_error_text());
    return 1;
}

static int send_field(mdg_send_port port, const double *field)
{
    mdg_message message;

    if (mdg_message_new(port, &message) < 0 || mdg_put_array(message, MDG_FLOAT64, field, CELLS, MDG_CHEAPER) < 0)
        return -1;
    return mdg_port_send(port, message);
}

static int take_field(mdg_receive_port port, double *field)
{
    mdg_incoming message;

    if (mdg_port_receive(port, patience, &message) < 0 || mdg_get_array(message, MDG_FLOAT64, field, CELLS) < 0)
        return -1;
    return mdg_incoming_end(message);
}

static int connect_to(mdg_runtime runtime, const char *address, mdg_send_port *out)
{
    return mdg_send_port_open(runtime, "field", type, out) < 0 ? -1 : mdg_port_connect(*out, address, patience);
}

static double mean(const double *field)
{
    double sum = 0;

    for (int i = 0; i < CELLS; i++)
        sum += field[i];
    return sum / CELLS;
}

static int ocean(mdg_runtime runtime)
{
    static double temperature[CELLS], flux[CELLS];
    char address[512];
    mdg_receive_port fluxes;
    mdg_send_port out;
    mdg_incoming first;

    if (mdg_receive_port_open(runtime, "fluxes", type, &fluxes) < 0 || mdg_address(fluxes, address, sizeof address) < 0)
        return failed("open");
    printf("%s\n", address);
    fflush(stdout);
    /* Who joins says where it takes temperatures. */
    if (mdg_port_receive(fluxes, patience, &first) < 0 || mdg_get_text(first, address, sizeof address) < 0 ||
        mdg_incoming_end(first) < 0 || connect_to(runtime, address, &out) < 0)
        return failed("meet");
    for (int i = 0; i < CELLS; i++)
        temperature[i] = 290;
    for (int step = 0; step < STEPS; step++) {
        if (send_field(out, temperature) < 0 || take_field(fluxes, flux) < 0)
            return failed("exchange");
        for (int i = 0; i < CELLS; i++)
            temperature[i] += flux[i];
    }
    printf("the ocean has %.3f K\n", mean(temperature));
    return 0;
}

static int air(mdg_runtime runtime, const char *address)
{
    static double temperature[CELLS], below[CELLS], flux[CELLS];
    char own[512];
    mdg_receive_port surface;
    mdg_send_port out;
    mdg_message first;

    if (mdg_receive_port_open(runtime, "surface", type, &surface) < 0 || mdg_address(surface, own, sizeof own) < 0 ||
        connect_to(runtime, address, &out) < 0)
        return failed("open");
    if (mdg_message_new(out, &first) < 0 || mdg_put_text(first, own) < 0 || mdg_port_send(out, first) < 0)
        return failed("meet");
    for (int i = 0; i < CELLS; i++)
        temperature[i] = 278;
    for (int step = 0; step < STEPS; step++) {
        if (take_field(surface, below) < 0)
            return failed("exchange");
        for (int i = 0; i < CELLS; i++)
            flux[i] = exchange * (temperature[i] - below[i]);
        if (send_field(out, flux) < 0)
            return failed("exchange");
        for (int i = 0; i < CELLS; i++)
            temperature[i] -= flux[i];
    }
    printf("the air has %.3f K\n", mean(temperature));
    return 0;
}

int main(int argc, char **argv)
{
    int result = 2;
    mdg_runtime runtime;

    if (mdg_runtime_open(&runtime) < 0)
        return failed("open");
    if (argc == 2 && strcmp(argv[1], "ocean") == 0)
        result = ocean(runtime);
    else if (argc == 3 && strcmp(argv[1], "air") == 0)
        result = air(runtime, argv[2]);
    else
        fprintf(stderr, "usage: coupled ocean | air ADDRESS\n");
    mdg_close(runtime);
    return result;
}
