/* What main.rs does, with libibverbs: from nothing to a queue pair that is connected to itself, phase by phase. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *need(void *object, const char *what)
{
	if (!object) {
		perror(what);
		exit(1);
	}
	return object;
}

static void must(int error, const char *what)
{
	if (error) {
		fprintf(stderr, "%s: %s\n", what, strerror(error));
		exit(1);
	}
}

/* Shows in the trace as a look for a file of this name. */
static void phase(const char *name)
{
	access(name, F_OK);
}

int main(int argc, char **argv)
{
	const char *wanted = argc > 1 ? argv[1] : "mlx5_0";
	struct ibv_context *context = NULL;

	phase("/phase/open");
	struct ibv_device **list = need(ibv_get_device_list(NULL), "ibv_get_device_list");
	for (struct ibv_device **device = list; *device && !context; device++)
		if (!strcmp(ibv_get_device_name(*device), wanted))
			context = ibv_open_device(*device);
	need(context, "ibv_open_device");
	ibv_free_device_list(list);

	phase("/phase/memory");
	struct ibv_pd *pd = need(ibv_alloc_pd(context), "ibv_alloc_pd");
	void *buffer = need(aligned_alloc(4096, 4096), "aligned_alloc");
	struct ibv_mr *mr = need(ibv_reg_mr(pd, buffer, 4096, IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");

	phase("/phase/completion-queue");
	struct ibv_cq *cq = need(ibv_create_cq(context, 64, NULL, NULL, 0), "ibv_create_cq");

	phase("/phase/queue-pair");
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = need(ibv_create_qp(pd, &init), "ibv_create_qp");

	phase("/phase/connect");
	struct ibv_port_attr port;
	union ibv_gid gid;
	must(ibv_query_port(context, 1, &port), "ibv_query_port");
	must(ibv_query_gid(context, 1, 3, &gid), "ibv_query_gid");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	must(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = port.active_mtu,
		.dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .dgid = gid, .sgid_index = 3, .hop_limit = 64 },
		},
	};
	must(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
	};
	must(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");

	phase("/phase/close");
	must(ibv_destroy_qp(qp), "ibv_destroy_qp");
	must(ibv_destroy_cq(cq), "ibv_destroy_cq");
	must(ibv_dereg_mr(mr), "ibv_dereg_mr");
	must(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	must(ibv_close_device(context), "ibv_close_device");
	phase("/phase/end");
	return 0;
}
