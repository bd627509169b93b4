/* A client of PMIx without MPI: what Open MPI asks of a server, and what other clients may.

   pmix_client [no-groups | log | abort RANK CODE]

   Compiles with the headers of OpenPMIx 3.2 to 6.1. Each rank writes one line if all is right. What goes wrong is written to
   stderr, with the status, and the exit code is 1. Groups work only where client and server have one version (4.2 with 5.0
   or 6.1: PMIx_Group_destruct fails). */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pmix_proc_t me;

static void check(const char *what, pmix_status_t status)
{
    if (status == PMIX_SUCCESS || status == PMIX_OPERATION_SUCCEEDED)
        return;
    fprintf(stderr, "rank %u: %s: %s (%d)\n", me.rank, what, PMIx_Error_string(status), status);
    exit(1);
}

static void expect(const char *what, int holds)
{
    if (holds)
        return;
    fprintf(stderr, "rank %u: %s\n", me.rank, what);
    exit(1);
}

/* A number that the server tells of a rank, or of the job. */
static uint32_t number(pmix_rank_t rank, const char *key)
{
    pmix_proc_t of;
    pmix_value_t *value;
    uint32_t result = 0;
    PMIX_LOAD_PROCID(&of, me.nspace, rank);
    check(key, PMIx_Get(&of, key, NULL, 0, &value));
    switch (value->type) {
    case PMIX_UINT32:
        result = value->data.uint32;
        break;
    case PMIX_UINT16:
        result = value->data.uint16;
        break;
    case PMIX_PROC_RANK:
        result = value->data.rank;
        break;
    default:
        fprintf(stderr, "%s has the type %d\n", key, value->type);
        exit(1);
    }
    PMIX_VALUE_RELEASE(value);
    return result;
}

static void put(const char *key, const char *text)
{
    pmix_value_t value;
    PMIX_VALUE_LOAD(&value, text, PMIX_STRING);
    check("PMIx_Put", PMIx_Put(PMIX_GLOBAL, key, &value));
    check("PMIx_Commit", PMIx_Commit());
}

static void get(pmix_rank_t rank, const char *key, const char *expected)
{
    pmix_proc_t of;
    pmix_value_t *value;
    PMIX_LOAD_PROCID(&of, me.nspace, rank);
    check("PMIx_Get", PMIx_Get(&of, key, NULL, 0, &value));
    expect("a value has the wrong type", value->type == PMIX_STRING);
    expect("a value is wrong", strcmp(value->data.string, expected) == 0);
    PMIX_VALUE_RELEASE(value);
}

static void fence(const pmix_proc_t *procs, size_t count, bool collect)
{
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
    check("PMIx_Fence", PMIx_Fence(procs, count, &info, 1));
}

/* Rank 0 publishes, the others wait for it, and it takes the name back. */
static void names(const pmix_proc_t *everybody)
{
    if (me.rank == 0) {
        pmix_info_t info;
        PMIX_INFO_LOAD(&info, "service", "port 42", PMIX_STRING);
        check("PMIx_Publish", PMIx_Publish(&info, 1));
    } else {
        pmix_pdata_t found;
        pmix_info_t infos[2];
        int wait = 0, seconds = 30;
        PMIX_PDATA_CONSTRUCT(&found);
        PMIX_LOAD_KEY(found.key, "service");
        PMIX_INFO_LOAD(&infos[0], PMIX_WAIT, &wait, PMIX_INT);
        PMIX_INFO_LOAD(&infos[1], PMIX_TIMEOUT, &seconds, PMIX_INT);
        check("PMIx_Lookup", PMIx_Lookup(&found, 1, infos, 2));
        expect("what was found has the wrong type", found.value.type == PMIX_STRING);
        expect("what was found is wrong", strcmp(found.value.data.string, "port 42") == 0);
        expect("somebody else has published it", found.proc.rank == 0);
    }
    fence(everybody, 1, false);
    if (me.rank == 0) {
        char *keys[] = { "service", NULL };
        check("PMIx_Unpublish", PMIx_Unpublish(keys, NULL, 0));
    }
    fence(everybody, 1, false);
    pmix_pdata_t found;
    PMIX_PDATA_CONSTRUCT(&found);
    PMIX_LOAD_KEY(found.key, "service");
    expect("a name is found that was taken back", PMIx_Lookup(&found, 1, NULL, 0) != PMIX_SUCCESS);
}

/* A program that is not there is started by nobody; the call returns with an error. */
static void spawn(void)
{
    pmix_app_t *app;
    pmix_nspace_t nspace;
    PMIX_APP_CREATE(app, 1);
    app->cmd = strdup("./nobody");
    app->argv = calloc(2, sizeof *app->argv);
    app->argv[0] = strdup("./nobody");
    app->maxprocs = 1;
    expect("PMIx_Spawn succeeded", PMIx_Spawn(NULL, 0, app, 1, nspace) != PMIX_SUCCESS);
}

#if PMIX_VERSION_MAJOR >= 4
/* All ranks make a group; its context has a number. */
static void group(uint32_t size)
{
    pmix_proc_t *procs = calloc(size, sizeof *procs);
    pmix_info_t info, *results = NULL;
    size_t count = 0, context = 0;
    bool yes = true;
    for (uint32_t rank = 0; rank < size; rank++)
        PMIX_LOAD_PROCID(&procs[rank], me.nspace, rank);
    PMIX_INFO_LOAD(&info, PMIX_GROUP_ASSIGN_CONTEXT_ID, &yes, PMIX_BOOL);
    check("PMIx_Group_construct", PMIx_Group_construct("group", procs, size, &info, 1, &results, &count));
    for (size_t i = 0; i < count; i++)
        if (PMIX_CHECK_KEY(&results[i], PMIX_GROUP_CONTEXT_ID))
            context = results[i].value.data.size;
    expect("the group has no context", context != 0);
    check("PMIx_Group_destruct", PMIx_Group_destruct("group", NULL, 0));
}
#endif

/* Texts for both streams, behind what was written before; a channel that is not there is refused. */
static void logs(void)
{
    pmix_info_t infos[2];
    fputs("before\n", stderr);
    PMIX_INFO_LOAD(&infos[0], PMIX_LOG_STDERR, "*** An error\n*** of two lines", PMIX_STRING);
    PMIX_INFO_LOAD(&infos[1], PMIX_LOG_STDOUT, "a word\n", PMIX_STRING);
    check("PMIx_Log", PMIx_Log(infos, 2, NULL, 0));
    fputs("behind\n", stderr);
    PMIX_INFO_LOAD(&infos[0], PMIX_LOG_JOB_RECORD, "nowhere", PMIX_STRING);
    expect("PMIx_Log to a job record succeeded", PMIx_Log(infos, 1, NULL, 0) != PMIX_SUCCESS);
}

int main(int argc, char **argv)
{
    pmix_proc_t everybody;
    char key[64], text[64];
    check("PMIx_Init", PMIx_Init(&me, NULL, 0));
    PMIX_LOAD_PROCID(&everybody, me.nspace, PMIX_RANK_WILDCARD);
    uint32_t size = number(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE);
    expect("the size of the universe is another", number(PMIX_RANK_WILDCARD, PMIX_UNIV_SIZE) == size);
    expect("the number of local ranks is another", number(PMIX_RANK_WILDCARD, PMIX_LOCAL_SIZE) == size);
    expect("the local rank is another", number(me.rank, PMIX_LOCAL_RANK) == me.rank);
    expect("the command is another", number(me.rank, PMIX_APPNUM) == 0);

    uint32_t next = (me.rank + 1) % size;
    snprintf(key, sizeof key, "collected-%u", me.rank);
    snprintf(text, sizeof text, "of rank %u", me.rank);
    put(key, text);
    fence(&everybody, 1, true);
    if (argc == 4 && strcmp(argv[1], "abort") == 0) {
        if (me.rank == (uint32_t)atoi(argv[2]))
            PMIx_Abort(atoi(argv[3]), "a client's own words", NULL, 0);
        // Whoever does not ask for it is ended.
        pause();
    }
    if (argc == 2 && strcmp(argv[1], "log") == 0) {
        logs();
        check("PMIx_Finalize", PMIx_Finalize(NULL, 0));
        return 0;
    }
    snprintf(key, sizeof key, "collected-%u", next);
    snprintf(text, sizeof text, "of rank %u", next);
    get(next, key, text);

    // Without the fence's data the server is asked.
    snprintf(key, sizeof key, "asked-%u", me.rank);
    snprintf(text, sizeof text, "from rank %u", me.rank);
    put(key, text);
    fence(&everybody, 1, false);
    snprintf(key, sizeof key, "asked-%u", next);
    snprintf(text, sizeof text, "from rank %u", next);
    get(next, key, text);

    names(&everybody);
    check("PMIx_Connect", PMIx_Connect(&everybody, 1, NULL, 0));
    check("PMIx_Disconnect", PMIx_Disconnect(&everybody, 1, NULL, 0));
    spawn();
#if PMIX_VERSION_MAJOR >= 4
    if (argc == 1)
        group(size);
#endif
    if (me.rank < 2 && size > 2) {
        pmix_proc_t two[2];
        PMIX_LOAD_PROCID(&two[0], me.nspace, 0);
        PMIX_LOAD_PROCID(&two[1], me.nspace, 1);
        fence(two, 2, true);
    }
    printf("rank %u of %u\n", me.rank, size);
    fflush(stdout);
    check("PMIx_Finalize", PMIx_Finalize(NULL, 0));
    return 0;
}
