/* What the personalities share: a Circuit with tags that all processes of the job have joined. */
#ifndef SESSION_H
#define SESSION_H

#include <madrigal.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

struct session {
    mdg_runtime runtime;
    mdg_circuit circuit;
    int rank, size;
};

/* Joins the job; NULL, or what failed: a static text, and mdg_error_text() says more. */
const char *session_open(struct session *session);
/* Waits until every process has come to this, then closes all. Messages with the tag UINT64_MAX are its own. */
const char *session_close(struct session *session);

#pragma GCC visibility pop

#endif
