/* Memory keys that requests configure: what the requests look like, what the keys lead to, and what is refused. */
#include "common.h"
#include <endian.h>
#include <infiniband/mlx5dv.h>

static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_qp_ex *ex;
static struct mlx5dv_qp_ex *dv;

static struct ibv_qp *make(enum ibv_qp_type type, uint32_t inline_data, uint64_t operations)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = inline_data },
	};
	struct mlx5dv_qp_init_attr own = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS, .send_ops_flags = operations };

	return mlx5dv_create_qp(context, &attr, &own);
}

static struct mlx5dv_mkey *make_key(uint16_t entries, uint32_t flags)
{
	struct mlx5dv_mkey_init_attr attr = { .pd = pd, .create_flags = flags, .max_entries = entries };
	struct mlx5dv_mkey *key = mlx5dv_create_mkey(&attr);

	CHECK(!key || (attr.max_entries >= entries && attr.max_entries % 4 == 0 && key->lkey == key->rkey));
	return key;
}

static void begin(uint64_t id)
{
	ibv_wr_start(ex);
	ex->wr_id = id;
	ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
}

static void configure(struct mlx5dv_mkey *key, uint8_t setters)
{
	struct mlx5dv_mkey_conf_attr attr = { 0 };
	mlx5dv_wr_mkey_configure(dv, key, setters, &attr);
}

static void configured(uint64_t id)
{
	struct ibv_wc wc = wait_for(cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == id && wc.opcode == IBV_WC_DRIVER1);
}

/* Writes the numbers from 1 on to a key, through the queue pair itself. */
static enum ibv_wc_status write_to(struct mlx5dv_mkey *key, uint64_t at, uint32_t count)
{
	static char numbers[64];
	uint32_t i;

	for (i = 0; i < count; i++)
		numbers[i] = (char)(i + 1);
	memset(buffer, 0, sizeof buffer);
	begin(7);
	ibv_wr_rdma_write(ex, key->rkey, at);
	ibv_wr_set_inline_data(ex, numbers, count);
	CHECK(ibv_wr_complete(ex) == 0);
	return wait_for(cq).status;
}

static void lists(void)
{
	struct mlx5dv_mkey *key = make_key(3, MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT);
	struct ibv_sge list[] = { { (uintptr_t)buffer + 100, 3, mr->lkey }, { (uintptr_t)buffer + 10, 4, mr->lkey } };
	struct mlx5dv_mr_interleaved elements[] = { { (uintptr_t)buffer, 2, 3, mr->lkey }, { (uintptr_t)buffer + 64, 1, 1, mr->lkey } };
	uint32_t remote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

	CHECK(key);
	/* A change and a use of the key in one batch: the use waits for the change. */
	begin(1);
	mlx5dv_wr_mr_list(dv, key, remote, 2, list);
	ex->wr_id = 2;
	ibv_wr_rdma_write(ex, key->rkey, 2);
	ibv_wr_set_inline_data(ex, "xyz", 3);
	CHECK(ibv_wr_complete(ex) == 0);
	configured(1);
	CHECK(wait_for(cq).wr_id == 2 && buffer[102] == 'x' && buffer[10] == 'y' && buffer[11] == 'z');

	CHECK(write_to(key, 1, 6) == IBV_WC_SUCCESS);
	CHECK(!memcmp(buffer + 101, "\1\2", 2) && !memcmp(buffer + 10, "\3\4\5\6", 4) && !buffer[100] && !buffer[103]);

	/* The setters in the other order, and new rights. */
	begin(3);
	configure(key, 2);
	mlx5dv_wr_set_mkey_layout_interleaved(dv, 3, 2, elements);
	mlx5dv_wr_set_mkey_access_flags(dv, remote);
	CHECK(ibv_wr_complete(ex) == 0);
	configured(3);
	CHECK(write_to(key, 0, 9) == IBV_WC_SUCCESS);
	CHECK(!memcmp(buffer, "\1\2\0\0\0\4\5\0\0\0\7\10\0", 13) && !memcmp(buffer + 64, "\3\0\6\0\11\0", 6));

	/* A single setter does not change the other's part of the key. */
	begin(4);
	configure(key, 1);
	mlx5dv_wr_set_mkey_layout_list(dv, 1, list);
	CHECK(ibv_wr_complete(ex) == 0);
	configured(4);
	CHECK(write_to(key, 0, 3) == IBV_WC_SUCCESS && !memcmp(buffer + 100, "\1\2\3", 3));
	CHECK(mlx5dv_destroy_mkey(key) == 0);
}

/* The request has the layout of libmlx5's header. */
static void encoding(void)
{
	struct mlx5dv_mkey *key = make_key(4, MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT);
	struct ibv_sge list = { (uintptr_t)buffer + 8, 16, mr->lkey };
	struct mlx5dv_qp shown;
	struct mlx5dv_obj obj = { .qp = { qp, &shown } };
	struct mlx5_wqe_ctrl_seg *control;
	struct mlx5_wqe_umr_ctrl_seg *umr;
	struct mlx5_wqe_mkey_context_seg *context_segment;
	struct mlx5_wqe_data_seg *data;
	uint32_t i;

	begin(5);
	mlx5dv_wr_mr_list(dv, key, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, 1, &list);
	CHECK(ibv_wr_complete(ex) == 0);
	configured(5);
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP) == 0);
	for (i = 0; ; i++) {
		CHECK(i < shown.sq.wqe_cnt);
		control = (void *)((char *)shown.sq.buf + i * shown.sq.stride);
		if ((be32toh(control->opmod_idx_opcode) & 0xff) == MLX5_OPCODE_UMR && control->imm == htobe32(key->lkey))
			break;
	}
	CHECK(be32toh(control->qpn_ds) == (qp->qp_num << 8 | 12) && (control->fm_ce_se & 0x1f) == MLX5_WQE_CTRL_CQ_UPDATE);
	umr = (void *)(control + 1);
	context_segment = (void *)(umr + 1);
	data = (void *)(context_segment + 1);
	CHECK(umr->flags == MLX5_WQE_UMR_CTRL_FLAG_INLINE && be16toh(umr->klm_octowords) == 4);
	CHECK(be64toh(umr->mkey_mask) == (MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE | MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY |
		MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN | MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_LOCAL_WRITE |
		MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_READ | MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_WRITE |
		MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_ATOMIC));
	CHECK(context_segment->free == 0 && context_segment->qpn_mkey == htobe32(0xffffff00) && be64toh(context_segment->len) == 16);
	CHECK(context_segment->access_flags == (MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_WRITE |
		MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ));
	CHECK(be32toh(data->byte_count) == 16 && be32toh(data->lkey) == mr->lkey && be64toh(data->addr) == list.addr);
	CHECK(mlx5dv_destroy_mkey(key) == 0);
}

static int completed(void)
{
	int answer = ibv_wr_complete(ex);
	struct ibv_wc wc;
	/* Nothing was posted. */
	CHECK(answer != 0 && ibv_poll_cq(cq, 1, &wc) == 0);
	return answer;
}

static void refusals(void)
{
	struct mlx5dv_mkey *key = make_key(4, MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT);
	struct mlx5dv_mkey_conf_attr unknown = { .comp_mask = 1 };
	struct ibv_sge list[8];
	struct ibv_qp *other;
	uint32_t i;

	for (i = 0; i < 8; i++)
		list[i] = (struct ibv_sge){ (uintptr_t)buffer, 1, mr->lkey };
	CHECK(!make_key(1, 0) && errno == EOPNOTSUPP);
	CHECK(!make_key(1, MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT | MLX5DV_MKEY_INIT_ATTR_FLAGS_BLOCK_SIGNATURE) && errno == EOPNOTSUPP);
	CHECK(!make(IBV_QPT_RC, 0, 1 << 10) && errno == EOPNOTSUPP);
	CHECK(!make(IBV_QPT_UC, 0, MLX5DV_QP_EX_WITH_MR_LIST) && errno == EOPNOTSUPP);

	begin(10);
	ex->wr_flags = IBV_SEND_SIGNALED;
	configure(key, 0);
	CHECK(completed() == EOPNOTSUPP);
	begin(10);
	mlx5dv_wr_mkey_configure(dv, key, 0, &unknown);
	CHECK(completed() == EOPNOTSUPP);
	/* More entries than the key has. */
	begin(10);
	mlx5dv_wr_mr_list(dv, key, IBV_ACCESS_LOCAL_WRITE, 5, list);
	CHECK(completed() == ENOMEM);
	/* A right that keys do not have, and setters called twice, without a key, or not called. */
	begin(10);
	mlx5dv_wr_mr_list(dv, key, IBV_ACCESS_ON_DEMAND, 1, list);
	CHECK(completed() == EINVAL);
	begin(10);
	configure(key, 3);
	mlx5dv_wr_set_mkey_layout_list(dv, 1, list);
	mlx5dv_wr_set_mkey_layout_list(dv, 1, list);
	mlx5dv_wr_set_mkey_access_flags(dv, 0);
	CHECK(completed() == EINVAL);
	begin(10);
	mlx5dv_wr_set_mkey_access_flags(dv, 0);
	CHECK(completed() == EINVAL);
	begin(10);
	configure(key, 2);
	mlx5dv_wr_set_mkey_access_flags(dv, 0);
	CHECK(completed() == EINVAL);
	/* The batch before it has ended. */
	begin(10);
	mlx5dv_wr_set_mkey_layout_list(dv, 1, list);
	CHECK(completed() == EINVAL);
	/* Nor over another request. */
	begin(10);
	configure(key, 1);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer);
	ibv_wr_set_inline_data(ex, "x", 1);
	mlx5dv_wr_set_mkey_layout_list(dv, 1, list);
	CHECK(completed() == EINVAL);
	/* An aborted batch posts nothing. */
	begin(10);
	configure(key, 1);
	ibv_wr_abort(ex);
	/* The refused requests have changed nothing: the key is free, and the queue pair works. */
	begin(11);
	mlx5dv_wr_mr_list(dv, key, IBV_ACCESS_REMOTE_WRITE, 4, list);
	CHECK(ibv_wr_complete(ex) == 0);
	configured(11);
	CHECK(write_to(key, 0, 4) == IBV_WC_SUCCESS && buffer[0] == 4);

	/* More entries than fit into the queue pair's requests. */
	other = make(IBV_QPT_RC, 0, MLX5DV_QP_EX_WITH_MKEY_CONFIGURE);
	CHECK(other);
	connect_to_itself(other);
	struct ibv_qp_ex *own = ex;
	struct mlx5dv_mkey *long_key = make_key(8, MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT);
	ex = ibv_qp_to_qp_ex(other);
	dv = mlx5dv_qp_ex_from_ibv_qp_ex(ex);
	begin(12);
	mlx5dv_wr_mr_list(dv, long_key, 0, 5, list);
	CHECK(completed() == ENOMEM);
	begin(12);
	mlx5dv_wr_mr_list(dv, long_key, 0, 4, list);
	CHECK(ibv_wr_complete(ex) == 0);
	configured(12);
	ex = own;
	dv = mlx5dv_qp_ex_from_ibv_qp_ex(ex);
	CHECK(ibv_destroy_qp(other) == 0 && mlx5dv_destroy_mkey(long_key) == 0);

	/* An access beyond the key's length fails, and moves both ends to the error state. */
	CHECK(write_to(key, 1, 4) != IBV_WC_SUCCESS && buffer[0] == 0);
	CHECK(mlx5dv_destroy_mkey(key) == 0);
}

int main(void)
{
	open_soft();
	cq = ibv_create_cq(context, 32, NULL, NULL, 0);
	CHECK(cq);
	qp = make(IBV_QPT_RC, 128, MLX5DV_QP_EX_WITH_MR_LIST | MLX5DV_QP_EX_WITH_MR_INTERLEAVED | MLX5DV_QP_EX_WITH_MKEY_CONFIGURE);
	CHECK(qp);
	connect_to_itself(qp);
	ex = ibv_qp_to_qp_ex(qp);
	dv = mlx5dv_qp_ex_from_ibv_qp_ex(ex);
	lists();
	encoding();
	refusals();
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	close_soft();
	printf("kept\n");
	return 0;
}
