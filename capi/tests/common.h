/* What the test programs have in common: one context, domain and region, and a queue pair that is its own peer. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>

#define CHECK(what)                                                                                  \
	do {                                                                                         \
		if (!(what)) {                                                                       \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno);         \
			exit(1);                                                                     \
		}                                                                                    \
	} while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static char buffer[4096];
static struct ibv_mr *mr;

static struct ibv_qp *make_qp(struct ibv_cq *cq, uint32_t depth, uint64_t operations)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | (operations ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.send_ops_flags = operations,
		.cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 2, .max_recv_sge = 2,
			 .max_inline_data = 32 },
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	CHECK(qp);
	CHECK(attr.cap.max_send_wr >= depth && attr.cap.max_inline_data >= 32);
	return qp;
}

/* The port's GID for RoCE v2 and IPv4: the software device inside the library has it at 3. */
static int gid_index(void)
{
	const char *index = getenv("GID_INDEX");
	return index ? atoi(index) : 3;
}

static void connect_to_itself(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			IBV_ACCESS_REMOTE_ATOMIC };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	CHECK(qp->state == IBV_QPS_INIT);
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.sgid_index = gid_index();
	attr.ah_attr.grh.hop_limit = 1;
	CHECK(ibv_query_gid(context, 1, gid_index(), &attr.ah_attr.grh.dgid) == 0);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static struct ibv_wc wait_for(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;
	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(n == 1);
	return wc;
}

/* Opens the only device there is. */
static void open_soft(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0] && !list[1]);
	context = ibv_open_device(list[0]);
	CHECK(context && context->device == list[0]);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(pd && mr);
}

static void close_soft(void)
{
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

/* Bytes from `start` to `end` of a struct, which belong to no field. memcheck knows whether they
 * were written. */
static inline void are_zero(const void *of, size_t start, size_t end)
{
	for (; start < end; start++)
		CHECK(((const unsigned char *)of)[start] == 0);
}

#define END(type, field) (offsetof(type, field) + sizeof ((type *)0)->field)
