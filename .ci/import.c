/* Imports an open device of its own by a duplicate of its file, and a protection domain and a region by their handles. Prints what
 * the verbs answer. Run under `uverbs run`, on libibverbs and on this library. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void say(const char *what, int answer)
{
    printf("%s: %d\n", what, answer);
}

static void *need(void *made, const char *what)
{
    if (!made) {
        perror(what);
        exit(1);
    }
    return made;
}

static int is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

int main(void)
{
    static char buffer[4096];
    struct ibv_device **list = need(ibv_get_device_list(NULL), "ibv_get_device_list");
    struct ibv_context *context = need(ibv_open_device(list[0]), "ibv_open_device");
    struct ibv_pd *pd = need(ibv_alloc_pd(context), "ibv_alloc_pd");
    struct ibv_mr *mr = need(ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
    int copy = dup(context->cmd_fd);
    struct ibv_context *imported = need(ibv_import_device(copy), "ibv_import_device");
    struct ibv_pd *same = need(ibv_import_pd(imported, pd->handle), "ibv_import_pd");
    struct ibv_mr *keys = need(ibv_import_mr(same, mr->handle), "ibv_import_mr");
    struct ibv_cq *cq = need(ibv_create_cq(imported, 4, NULL, NULL, 0), "ibv_create_cq");
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = need(ibv_create_qp(same, &init), "ibv_create_qp");

    say("the context has the program's descriptor", imported->cmd_fd == copy);
    say("the same device", imported->device == context->device);
    say("the same keys", keys->lkey == mr->lkey && keys->rkey == mr->rkey);
    say("address and length", keys->addr == NULL && keys->length == sizeof buffer);
    errno = 0;
    say("a domain that is not there", !ibv_import_pd(imported, 0x7777) * errno);
    errno = 0;
    say("a region that is not there", !ibv_import_mr(same, 0x7777) * errno);
    say("queue pair", ibv_destroy_qp(qp));
    say("completion queue", ibv_destroy_cq(cq));
    ibv_unimport_mr(keys);
    ibv_unimport_pd(same);
    say("close", ibv_close_device(imported));
    say("the descriptor is open", is_open(copy));
    say("the other is open", is_open(context->cmd_fd));
    say("region", ibv_dereg_mr(mr));
    say("domain", ibv_dealloc_pd(pd));
    say("close", ibv_close_device(context));
    ibv_free_device_list(list);
    return 0;
}
