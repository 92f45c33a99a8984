/* Two RC queue pairs of one process send each other messages, which are compared. Status 1 says that a verb failed or a byte
 * was wrong. Built statically, and against other C libraries. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 4000, ROUNDS = 100, ALL = IBV_ACCESS_LOCAL_WRITE };

static void need(int good, const char *what)
{
    if (!good) {
        perror(what);
        exit(1);
    }
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer, const union ibv_gid *gid, int gid_index)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

    need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "to INIT");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
        .rq_psn = 7, .max_dest_rd_atomic = 1, .min_rnr_timer = 12};
    attr.ah_attr = (struct ibv_ah_attr){.port_num = 1, .is_global = 1,
        .grh = {.dgid = *gid, .sgid_index = gid_index, .hop_limit = 1}};
    need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "to RTR");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
        .max_rd_atomic = 1};
    need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
        | IBV_QP_MAX_QP_RD_ATOMIC), "to RTS");
}

static void complete(struct ibv_cq *cq, int wanted)
{
    for (struct ibv_wc wc; wanted > 0;) {
        int polled = ibv_poll_cq(cq, 1, &wc);
        need(polled >= 0, "ibv_poll_cq");
        if (polled > 0 && wc.status != IBV_WC_SUCCESS) {
            fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc.status));
            exit(1);
        }
        wanted -= polled;
    }
}

int main(void)
{
    static unsigned char out[LENGTH], in[LENGTH];
    int devices, gid_index = 3;
    struct ibv_device **list = ibv_get_device_list(&devices);
    need(list && devices > 0, "ibv_get_device_list");
    struct ibv_context *context = ibv_open_device(list[0]);
    need(context != NULL, "ibv_open_device");
    union ibv_gid gid;
    need(!ibv_query_gid(context, 1, gid_index, &gid), "ibv_query_gid");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_mr *from = ibv_reg_mr(pd, out, LENGTH, ALL), *to = ibv_reg_mr(pd, in, LENGTH, ALL);
    need(cq && from && to, "objects");
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
    struct ibv_qp *sender = ibv_create_qp(pd, &init), *receiver = ibv_create_qp(pd, &init);
    need(sender && receiver, "ibv_create_qp");
    connect_to(sender, receiver, &gid, gid_index);
    connect_to(receiver, sender, &gid, gid_index);
    for (int round = 0; round < ROUNDS; round++) {
        struct ibv_sge source = {(uintptr_t)out, LENGTH - round, from->lkey}, sink = {(uintptr_t)in, LENGTH, to->lkey};
        struct ibv_recv_wr receive = {.sg_list = &sink, .num_sge = 1}, *bad_receive;
        struct ibv_send_wr send = {.sg_list = &source, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
        memset(out, round + 1, LENGTH);
        need(!ibv_post_recv(receiver, &receive, &bad_receive), "ibv_post_recv");
        need(!ibv_post_send(sender, &send, &bad_send), "ibv_post_send");
        complete(cq, 2);
        need(!memcmp(in, out, LENGTH - round), "compare");
    }
    need(!ibv_destroy_qp(sender) && !ibv_destroy_qp(receiver) && !ibv_dereg_mr(from) && !ibv_dereg_mr(to)
        && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "destroying");
    ibv_free_device_list(list);
    printf("%d messages\n", ROUNDS);
    return 0;
}
