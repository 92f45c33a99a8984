// Receive side scaling with the verbs alone: frames from a raw packet queue pair are spread over the work queues of an
// indirection table, each to the queue that the Toeplitz hash of its addresses and ports names. Frames of another protocol,
// for which there is no rule, reach no queue. Prints a line; ends with status 1 at the first thing that is not as it should be.
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)
enum { QUEUES = 4, DEPTH = 64, SIZE = 128, FRAME = 60, FRAMES = 100 };

static uint8_t key[40] = {
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
    0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
};

static uint32_t toeplitz(const uint8_t *input, int length) {
    uint32_t hash = 0;
    for (int bit = 0; bit < length * 8; bit++) {
        if (!(input[bit / 8] & 0x80 >> bit % 8)) continue;
        for (int n = 0; n < 32; n++) hash ^= (uint32_t)(key[(bit + n) / 8] >> (7 - (bit + n) % 8) & 1) << (31 - n);
    }
    return hash;
}

// A frame of UDP (17) or TCP (6) over IPv4 to the MAC address 02:00:00:00:00:77.
static void build(uint8_t *frame, uint8_t protocol, uint16_t number) {
    static const uint8_t head[] = {2, 0, 0, 0, 0, 0x77, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64};
    memset(frame, 0, FRAME);
    memcpy(frame, head, sizeof head);
    frame[23] = protocol;
    memcpy(frame + 26, (uint8_t[]){10, 0, number >> 8, number, 10, 9, 8, 7}, 8);
    memcpy(frame + 34, (uint16_t[]){htons(1000 + 7 * number), htons(5000)}, 4);
    if (protocol == 17) frame[39] = 26; else frame[46] = 0x50;
    frame[59] = number;
}

static struct ibv_qp *spread(struct ibv_context *context, struct ibv_pd *pd, struct ibv_rwq_ind_table *table, uint64_t fields) {
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_RAW_PACKET,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
        .pd = pd,
        .rwq_ind_tbl = table,
        .rx_hash_conf = {IBV_RX_HASH_FUNC_TOEPLITZ, sizeof key, key, fields},
    };
    return ibv_create_qp_ex(context, &attr);
}

// A rule for a destination address and port.
static struct ibv_flow *rule(struct ibv_qp *qp, int kind) {
    struct {
        struct ibv_flow_attr attr;
        struct ibv_flow_spec_eth eth;
        struct ibv_flow_spec_ipv4 ip;
        struct ibv_flow_spec_tcp_udp l4;
    } __attribute__((packed)) rule = {
        {.size = sizeof rule, .num_of_specs = 3, .port = 1, .type = IBV_FLOW_ATTR_NORMAL},
        {.type = IBV_FLOW_SPEC_ETH, .size = sizeof rule.eth,
         .val.dst_mac = {2, 0, 0, 0, 0, 0x77}, .mask.dst_mac = {255, 255, 255, 255, 255, 255}},
        {.type = IBV_FLOW_SPEC_IPV4, .size = sizeof rule.ip},
        {.type = kind, .size = sizeof rule.l4, .val.dst_port = htons(5000), .mask.dst_port = 0xffff},
    };
    return ibv_create_flow(qp, &rule.attr);
}

int main(void) {
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    struct ibv_device_attr_ex caps;
    CHECK(!ibv_query_device_ex(context, NULL, &caps));
    CHECK(caps.rss_caps.supported_qpts & 1 << IBV_QPT_RAW_PACKET);
    CHECK(caps.rss_caps.max_rwq_indirection_table_size >= QUEUES && caps.max_wq_type_rq >= QUEUES);
    CHECK(caps.rss_caps.rx_hash_function & IBV_RX_HASH_FUNC_TOEPLITZ);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    static uint8_t memory[QUEUES][DEPTH][SIZE], frame[SIZE];
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mr *frame_mr = ibv_reg_mr(pd, frame, sizeof frame, IBV_ACCESS_LOCAL_WRITE);
    CHECK(pd && mr && frame_mr);

    struct ibv_cq *cq[QUEUES];
    struct ibv_wq *wq[QUEUES];
    for (int n = 0; n < QUEUES; n++) {
        CHECK(cq[n] = ibv_create_cq(context, DEPTH, NULL, NULL, 0));
        struct ibv_wq_init_attr attr = {.wq_type = IBV_WQT_RQ, .max_wr = DEPTH, .max_sge = 1, .pd = pd, .cq = cq[n]};
        CHECK(wq[n] = ibv_create_wq(context, &attr));
        CHECK(wq[n]->state == IBV_WQS_RESET);
        struct ibv_wq_attr ready = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY};
        CHECK(!ibv_modify_wq(wq[n], &ready));
        for (int at = 0; at < DEPTH; at++) {
            struct ibv_sge sge = {(uintptr_t)memory[n][at], SIZE, mr->lkey};
            struct ibv_recv_wr wr = {.wr_id = at, .sg_list = &sge, .num_sge = 1}, *bad;
            CHECK(!ibv_post_wq_recv(wq[n], &wr, &bad));
        }
    }
    struct ibv_rwq_ind_table_init_attr init = {.log_ind_tbl_size = 2, .ind_tbl = wq};
    struct ibv_rwq_ind_table *table = ibv_create_rwq_ind_table(context, &init);
    CHECK(table);
    CHECK(ibv_destroy_wq(wq[0]) == EBUSY);
    uint64_t addresses = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4;
    CHECK(!spread(context, pd, table, addresses | IBV_RX_HASH_SRC_IPV6) && errno == EINVAL);
    struct ibv_qp *udp = spread(context, pd, table, addresses | IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP);
    CHECK(udp);
    struct ibv_flow *flow = rule(udp, IBV_FLOW_SPEC_UDP);
    CHECK(flow);

    struct ibv_cq *sends = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr raw = {
        .send_cq = sends, .recv_cq = sends, .qp_type = IBV_QPT_RAW_PACKET, .cap = {.max_send_wr = 16, .max_send_sge = 1}, .sq_sig_all = 1};
    struct ibv_qp *sender = ibv_create_qp(pd, &raw);
    CHECK(sends && sender);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(!ibv_modify_qp(sender, &attr, IBV_QP_STATE | IBV_QP_PORT));
    attr.qp_state = IBV_QPS_RTR;
    CHECK(!ibv_modify_qp(sender, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_RTS;
    CHECK(!ibv_modify_qp(sender, &attr, IBV_QP_STATE));

    int got[QUEUES] = {0}, total = 0;
    for (int number = 0; number < FRAMES; number++) {
        uint8_t protocol = number % 5 == 4 ? 6 : 17;
        build(frame, protocol, number);
        struct ibv_sge sge = {(uintptr_t)frame, FRAME, frame_mr->lkey};
        struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
        struct ibv_wc wc;
        CHECK(!ibv_post_send(sender, &wr, &bad));
        while (ibv_poll_cq(sends, 1, &wc) == 0) {}
        CHECK(wc.status == IBV_WC_SUCCESS);
        if (protocol != 17) continue;
        int expected = toeplitz(frame + 26, 12) % QUEUES, polled;
        while ((polled = ibv_poll_cq(cq[expected], 1, &wc)) == 0) {}
        CHECK(polled == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == FRAME);
        CHECK(memory[expected][wc.wr_id][59] == (uint8_t)number);
        got[expected]++, total++;
    }
    for (int n = 0; n < QUEUES; n++) {
        struct ibv_wc wc;
        CHECK(ibv_poll_cq(cq[n], 1, &wc) == 0);
        CHECK(got[n] > 0);
    }
    CHECK(ibv_destroy_qp(udp) == EBUSY);
    CHECK(!ibv_destroy_flow(flow) && !ibv_destroy_qp(udp) && !ibv_destroy_rwq_ind_table(table));
    // A queue in error gives its receives back.
    struct ibv_wq_attr error = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_ERR};
    CHECK(!ibv_modify_wq(wq[0], &error));
    for (int left = DEPTH - got[0]; left > 0;) {
        struct ibv_wc wc;
        int polled = ibv_poll_cq(cq[0], 1, &wc);
        CHECK(polled >= 0);
        if (polled) CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
        left -= polled;
    }
    for (int n = 0; n < QUEUES; n++) CHECK(!ibv_destroy_wq(wq[n]) && !ibv_destroy_cq(cq[n]));
    CHECK(!ibv_destroy_qp(sender) && !ibv_destroy_cq(sends));
    CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(frame_mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
    ibv_free_device_list(list);
    printf("%d frames over %d queues: %d %d %d %d\n", total, QUEUES, got[0], got[1], got[2], got[3]);
    return 0;
}
