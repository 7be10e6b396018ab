#include "session.h"

/* The tag of the last message to each node. */
#define BYE UINT64_MAX

/* Nobody goes before all have come to their end: who receives a long message needs its sender. */
static const char *say_bye(const struct session *session)
{
    int node;

    for (node = 0; node < session->size; node++) {
        mdg_packing bye;
        if (mdg_begin_packing(session->circuit, node, BYE, &bye) < 0 || mdg_end_packing(bye) < 0)
            return "cannot take leave of a node";
    }
    for (node = 0; node < session->size; node++) {
        mdg_unpacking bye;
        if (mdg_begin_unpacking(session->circuit, node, BYE, 0, MDG_FOREVER, &bye) < 0 || mdg_end_unpacking(bye) < 0)
            return "a node has gone without a word";
    }
    return NULL;
}

const char *session_open(struct session *session)
{
    if (mdg_runtime_open(&session->runtime) < 0)
        return "cannot open a runtime";
    if (mdg_circuit_open(session->runtime, MDG_TAGS, &session->circuit) < 0)
        return "cannot open a Circuit";
    session->rank = mdg_circuit_world(session->circuit, MDG_FOREVER, &session->size);
    return session->rank < 0 ? "cannot join the job" : NULL;
}

const char *session_close(struct session *session)
{
    const char *failed = say_bye(session);

    if (failed)
        return failed;
    if (mdg_flush(session->circuit, MDG_FOREVER) < 0)
        return "what was sent has not left";
    return mdg_close(session->runtime) < 0 ? "cannot close the runtime" : NULL;
}
