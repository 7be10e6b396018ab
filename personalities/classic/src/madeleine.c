#include "madeleine.h"
#include "session.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mad_madeleine {
    struct session session;
    pthread_mutex_t lock;
    struct mad_channel *channels;
};

struct mad_channel {
    struct mad_madeleine *madeleine;
    struct mad_channel *next;
    /* The tag of its messages. */
    uint64_t tag;
    /* A message that was seen to be ready, and not begun yet. Under the lock. */
    p_mad_connection_t kept;
    char name[];
};

/* A message is its handle, an mdg_packing or an mdg_unpacking, so that none is allocated. */
_Static_assert(sizeof(p_mad_connection_t) >= sizeof(mdg_handle), "a pointer holds a handle");

static p_mad_connection_t message(mdg_handle handle)
{
    return (p_mad_connection_t)(uintptr_t)handle;
}

static mdg_handle handle(p_mad_connection_t message)
{
    return (mdg_handle)(uintptr_t)message;
}

static void (*handler)(const char *text);

void mad_set_error_handler(void (*function)(const char *text))
{
    __atomic_store_n(&handler, function, __ATOMIC_RELEASE);
}

static void fail(const char *what)
{
    char text[1024];
    void (*function)(const char *) = __atomic_load_n(&handler, __ATOMIC_ACQUIRE);

    snprintf(text, sizeof text, "madeleine: %s: %s", what, mdg_error_text());
    if (function)
        function(text);
    fprintf(stderr, "%s\n", text);
    abort();
}

static void *allocated(size_t size)
{
    void *memory = calloc(1, size);

    if (!memory) {
        fprintf(stderr, "madeleine: no memory\n");
        abort();
    }
    return memory;
}

p_mad_madeleine_t mad_init(int *argc, char **argv)
{
    struct mad_madeleine *all = allocated(sizeof *all);
    const char *failed;

    (void)argc;
    (void)argv;
    pthread_mutex_init(&all->lock, NULL);
    failed = session_open(&all->session);
    if (failed)
        fail(failed);
    return all;
}

void mad_exit(p_mad_madeleine_t all)
{
    const char *failed = session_close(&all->session);

    if (failed)
        fail(failed);
    while (all->channels) {
        struct mad_channel *channel = all->channels;
        all->channels = channel->next;
        free(channel);
    }
    pthread_mutex_destroy(&all->lock);
    free(all);
}

int mad_get_rank(p_mad_madeleine_t all)
{
    return all->session.rank;
}

int mad_get_size(p_mad_madeleine_t all)
{
    return all->session.size;
}

/* FNV-1a. */
static uint64_t hash(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;

    while (*name)
        hash = (hash ^ (unsigned char)*name++) * 0x100000001b3u;
    return hash;
}

p_mad_channel_t mad_get_channel(p_mad_madeleine_t all, const char *name)
{
    uint64_t tag = hash(name);
    struct mad_channel *channel;

    pthread_mutex_lock(&all->lock);
    for (channel = all->channels; channel && channel->tag != tag; channel = channel->next)
        ;
    if (!channel) {
        channel = allocated(sizeof *channel + strlen(name) + 1);
        channel->madeleine = all;
        channel->tag = tag;
        strcpy(channel->name, name);
        channel->next = all->channels;
        all->channels = channel;
    }
    pthread_mutex_unlock(&all->lock);
    if (strcmp(channel->name, name) != 0) {
        fprintf(stderr, "madeleine: the channels `%s` and `%s` have one hash: give one of them another name\n", channel->name, name);
        abort();
    }
    return channel;
}

p_mad_connection_t mad_begin_packing(p_mad_channel_t channel, int to)
{
    mdg_packing packing;

    if (mdg_begin_packing(channel->madeleine->session.circuit, to, channel->tag, &packing) < 0)
        fail(channel->name);
    return message(packing);
}

void mad_pack(p_mad_connection_t packing, const void *bytes, size_t length, mad_send_mode_t send, mad_receive_mode_t receive)
{
    static const int modes[] = {[mad_send_SAFER] = MDG_SAFER, [mad_send_LATER] = MDG_LATER, [mad_send_CHEAPER] = MDG_CHEAPER};

    (void)receive;
    if (mdg_pack(handle(packing), bytes, length, modes[send]) < 0)
        fail("mad_pack");
}

void mad_end_packing(p_mad_connection_t packing)
{
    if (mdg_end_packing(handle(packing)) < 0)
        fail("mad_end_packing");
}

/* The next message, which came within this time; 0: none did. */
static int next(p_mad_channel_t channel, int64_t timeout, mdg_unpacking *unpacking)
{
    int code = mdg_begin_unpacking(channel->madeleine->session.circuit, MDG_ANY, channel->tag, 0, timeout, unpacking);

    if (code < 0 && code != MDG_ETIMEDOUT)
        fail(channel->name);
    return code == 0;
}

p_mad_connection_t mad_begin_unpacking(p_mad_channel_t channel)
{
    mdg_unpacking unpacking;
    p_mad_connection_t kept;

    pthread_mutex_lock(&channel->madeleine->lock);
    kept = channel->kept;
    channel->kept = NULL;
    pthread_mutex_unlock(&channel->madeleine->lock);
    if (kept)
        return kept;
    while (!next(channel, MDG_FOREVER, &unpacking))
        ;
    return message(unpacking);
}

int mad_message_ready(p_mad_channel_t channel)
{
    mdg_unpacking unpacking;
    int ready;

    pthread_mutex_lock(&channel->madeleine->lock);
    if (!channel->kept && next(channel, 0, &unpacking))
        channel->kept = message(unpacking);
    ready = channel->kept != NULL;
    pthread_mutex_unlock(&channel->madeleine->lock);
    return ready;
}

int mad_get_sender(p_mad_connection_t unpacking)
{
    int from = -1;

    if (mdg_sender(handle(unpacking), &from, NULL) < 0)
        fail("mad_get_sender");
    return from;
}

void mad_unpack(p_mad_connection_t unpacking, void *bytes, size_t length, mad_send_mode_t send, mad_receive_mode_t receive)
{
    (void)send;
    if (mdg_unpack(handle(unpacking), bytes, length, receive == mad_receive_EXPRESS ? MDG_EXPRESS : MDG_CHEAPER) < 0)
        fail("mad_unpack");
}

void mad_end_unpacking(p_mad_connection_t unpacking)
{
    if (mdg_end_unpacking(handle(unpacking)) < 0)
        fail("mad_end_unpacking");
}
