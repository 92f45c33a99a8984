/* Doorbell pages and firmware commands of a program's own. */
#include "common.h"
#include <endian.h>
#include <sys/eventfd.h>
#include <infiniband/mlx5dv.h>

#ifndef MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED
#define MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED (1U << 31)
#endif

static void doorbell_pages(void)
{
	struct mlx5dv_devx_uar *fast, *own, *shared, *again;
	uint32_t id;

	CHECK(!mlx5dv_devx_alloc_uar(context, 1 << 7) && errno == EOPNOTSUPP);
	fast = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_BF);
	own = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED);
	shared = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
	again = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
	CHECK(fast && own && shared && again);
	CHECK((char *)fast->reg_addr == (char *)fast->base_addr + 0x800 && fast->comp_mask == 0);
	CHECK(fast->page_id != own->page_id && fast->base_addr != own->base_addr && fast->mmap_off != own->mmap_off);
	CHECK(shared->page_id != own->page_id && shared->page_id == again->page_id);
	CHECK(shared->base_addr == again->base_addr && shared->reg_addr == again->reg_addr);
	/* A doorbell of no queue is taken and does nothing. */
	*(volatile uint64_t *)fast->reg_addr = 0;
	*(volatile uint64_t *)own->reg_addr = 0;
	id = fast->page_id;
	mlx5dv_devx_free_uar(fast);
	mlx5dv_devx_free_uar(shared);
	/* The shared page is there as long as its context, and a page that is freed can be had again. */
	*(volatile uint64_t *)again->reg_addr = 0;
	fast = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_BF);
	CHECK(fast && fast->page_id == id);
	mlx5dv_devx_free_uar(fast);
	mlx5dv_devx_free_uar(again);
	mlx5dv_devx_free_uar(own);
}

/* The kernel knows no method of objects that the device lacks. */
static void what_the_device_lacks(void)
{
	CHECK(!mlx5dv_alloc_var(context, 1 << 9) && errno == EOPNOTSUPP);
	CHECK(!mlx5dv_alloc_var(context, 0) && errno == EPROTONOSUPPORT);
}

/* Equal rates share an entry, but for one that is asked for alone. */
static void rates(void)
{
	uint32_t rate[12] = { htobe32(1000) }, none[12] = { 0 };
	struct mlx5dv_pp *a, *b, *alone;

	CHECK(!mlx5dv_pp_alloc(context, sizeof rate, rate, 1 << 9) && errno == EOPNOTSUPP);
	CHECK(!mlx5dv_pp_alloc(context, sizeof none, none, 0) && errno == EINVAL);
	CHECK(!mlx5dv_pp_alloc(context, sizeof rate + 1, rate, 0) && errno == EINVAL);
	a = mlx5dv_pp_alloc(context, sizeof rate[0], rate, 0);
	b = mlx5dv_pp_alloc(context, sizeof rate, rate, 0);
	alone = mlx5dv_pp_alloc(context, sizeof rate, rate, MLX5DV_PP_ALLOC_FLAGS_DEDICATED_INDEX);
	CHECK(a && b && alone && a->index == b->index && a->index != alone->index && a->index != 0);
	mlx5dv_pp_free(a);
	mlx5dv_pp_free(b);
	mlx5dv_pp_free(alone);
}

/* Commands begin with the opcode: QUERY_HCA_CAP, of the general capabilities. */
static void commands(void)
{
	uint8_t in[16] = { 0x01, 0x00 }, out[16 + 4096], *huge = calloc(1, 1 << 16);
	uint32_t number = 0;

	memset(out, 0xaa, sizeof out);
	CHECK(mlx5dv_devx_general_cmd(context, in, sizeof in, out, sizeof out) == 0);
	CHECK(out[0] == 0);
	/* CREATE_QP is no general command. */
	in[0] = 0x05;
	CHECK(mlx5dv_devx_general_cmd(context, in, sizeof in, out, sizeof out) == EINVAL);
	/* More than the length of an attribute can say. */
	CHECK(huge && mlx5dv_devx_general_cmd(context, huge, 1 << 16, out, sizeof out) == EINVAL);
	free(huge);
	/* It creates an object, and the firmware says in its answer that this one is too short. */
	CHECK(!mlx5dv_devx_obj_create(context, in, sizeof in, out, sizeof out) && errno == EREMOTEIO);
	CHECK(out[0] == 0x50);
	CHECK(mlx5dv_devx_query_eqn(context, 0, &number) == 0 && number != 0);
	CHECK(mlx5dv_devx_query_eqn(context, 1 << 10, &number) == ENOENT);
}

/* Files of answers and events. */
static void answers_and_events(struct mlx5dv_devx_obj *cq, const void *query)
{
	struct mlx5dv_devx_cmd_comp *answers = mlx5dv_devx_create_cmd_comp(context);
	struct mlx5dv_devx_event_channel *events = mlx5dv_devx_create_event_channel(context, MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA);
	struct {
		struct mlx5dv_devx_async_cmd_hdr header;
		uint8_t out[272];
	} answer = { 0 };
	struct mlx5dv_devx_async_event_hdr event = { 0 };
	uint16_t completion = 0, port_change = 9;
	int counter = eventfd(0, EFD_NONBLOCK);

	CHECK(answers && answers->fd >= 0 && events && events->fd >= 0 && counter >= 0);
	CHECK(!mlx5dv_devx_create_event_channel(context, 1 << 7) && errno == EINVAL);
	CHECK(fcntl(answers->fd, F_SETFL, O_NONBLOCK) == 0 && fcntl(events->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(mlx5dv_devx_get_async_cmd_comp(answers, &answer.header, sizeof answer) == EAGAIN);
	CHECK(mlx5dv_devx_obj_query_async(cq, query, 16, sizeof answer.out, 42, answers) == 0);
	CHECK(mlx5dv_devx_get_async_cmd_comp(answers, &answer.header, sizeof answer) == 0);
	CHECK(answer.header.wr_id == 42 && answer.out[0] == 0 && (answer.out[16 + 12] & 31) == 4);

	CHECK(mlx5dv_devx_subscribe_devx_event(events, NULL, sizeof completion, &completion, 1) == EINVAL);
	CHECK(mlx5dv_devx_subscribe_devx_event(events, cq, sizeof port_change, &port_change, 1) == EINVAL);
	CHECK(mlx5dv_devx_subscribe_devx_event(events, NULL, sizeof port_change, &port_change, 1) == 0);
	CHECK(mlx5dv_devx_subscribe_devx_event(events, cq, sizeof completion, &completion, 7) == 0);
	CHECK(mlx5dv_devx_subscribe_devx_event_fd(events, -1, cq, completion) == EBADF);
	CHECK(mlx5dv_devx_subscribe_devx_event_fd(events, counter, cq, completion) == 0);
	CHECK(mlx5dv_devx_get_event(events, &event, sizeof event) == -1 && errno == EAGAIN);
	mlx5dv_devx_destroy_cmd_comp(answers);
	mlx5dv_devx_destroy_event_channel(events);
	close(counter);
}

/* A protection domain, and a completion queue in memory of the program's own. */
static void objects(void)
{
	uint8_t pd_in[16] = { 0x08, 0x00 }, cq_in[272] = { 0x04, 0x00 }, out[272];
	struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
	static _Alignas(4096) char memory[4096];
	struct mlx5dv_devx_umem *umem = mlx5dv_devx_umem_reg(context, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct mlx5dv_devx_obj *pd, *cq;
	uint32_t number;

	pd = mlx5dv_devx_obj_create(context, pd_in, sizeof pd_in, out, 16);
	CHECK(pd && mlx5dv_devx_obj_destroy(pd) == 0);
	CHECK(uar && umem && mlx5dv_devx_query_eqn(context, 1, &number) == 0);
	/* Fields of the context: sixteen entries, UAR and event queue; record and ring in the umem, the ring at its start. */
	*(uint32_t *)(cq_in + 16 + 4) = htobe32(umem->umem_id);
	*(uint32_t *)(cq_in + 16 + 12) = htobe32(4 << 24 | uar->page_id);
	*(uint32_t *)(cq_in + 16 + 20) = htobe32(number);
	*(uint64_t *)(cq_in + 16 + 56) = htobe64(2048);
	*(uint32_t *)(cq_in + 16 + 72) = htobe32(umem->umem_id);
	cq = mlx5dv_devx_obj_create(context, cq_in, sizeof cq_in, out, 16);
	CHECK(cq && mlx5dv_devx_umem_dereg(umem) == EBUSY);
	memset(cq_in, 0, 16);
	memcpy(cq_in + 8, out + 8, 4);
	cq_in[0] = 0x04;
	cq_in[1] = 0x02;
	CHECK(mlx5dv_devx_obj_query(cq, cq_in, 16, out, sizeof out) == 0);
	CHECK((out[16 + 12] & 31) == 4);
	answers_and_events(cq, cq_in);
	/* The kernel knows which number the object has. */
	cq_in[11] ^= 1;
	CHECK(mlx5dv_devx_obj_query(cq, cq_in, 16, out, sizeof out) == EINVAL);
	CHECK(mlx5dv_devx_obj_destroy(cq) == 0 && mlx5dv_devx_umem_dereg(umem) == 0);
	mlx5dv_devx_free_uar(uar);
}

/* 2ERR_QP, whose answer is written over the command: the library learns of the new state all the same. So it does of
   2RST_QP, after which nothing can be posted. */
static void state_of_a_queue_pair(struct ibv_cq *cq)
{
	struct ibv_qp *qp = make_qp(cq, 4, 0);
	uint32_t command[4] = { htobe32(0x507 << 16), 0, htobe32(qp->qp_num) };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;

	connect_to_itself(qp);
	CHECK(mlx5dv_devx_qp_modify(qp, command, sizeof command, command, sizeof command) == 0);
	CHECK(qp->state == IBV_QPS_ERR);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0 && wait_for(cq).status == IBV_WC_WR_FLUSH_ERR);
	command[0] = htobe32(0x50a << 16);
	command[1] = 0;
	command[2] = htobe32(qp->qp_num);
	CHECK(mlx5dv_devx_qp_modify(qp, command, sizeof command, command, sizeof command) == 0);
	CHECK(qp->state == IBV_QPS_RESET);
	CHECK(ibv_post_send(qp, &wr, &bad) == ENOMEM && bad == &wr);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* Numbers of no queue pair: more than one object has, each once until all of an object came back. */
static void reserved_numbers(void)
{
	uint32_t numbers[70], number;
	int i, j;

	for (i = 0; i < 70; i++) {
		CHECK(mlx5dv_reserved_qpn_alloc(context, &numbers[i]) == 0 && numbers[i]);
		for (j = 0; j < i; j++)
			CHECK(numbers[j] != numbers[i]);
	}
	CHECK(numbers[1] == numbers[0] + 1 && numbers[63] == numbers[0] + 63);
	CHECK(mlx5dv_reserved_qpn_dealloc(context, numbers[0]) == 0);
	CHECK(mlx5dv_reserved_qpn_dealloc(context, numbers[0]) == EINVAL && errno == EINVAL);
	CHECK(mlx5dv_reserved_qpn_dealloc(context, numbers[69] + 1) == EINVAL);
	CHECK(mlx5dv_reserved_qpn_alloc(context, &number) == 0 && number == numbers[69] + 1);
	for (i = 1; i < 64; i++)
		CHECK(mlx5dv_reserved_qpn_dealloc(context, numbers[i]) == 0);
	do
		i = mlx5dv_reserved_qpn_alloc(context, &number);
	while (!i);
	CHECK(i == ENOMEM && errno == ENOMEM);
	/* The rest goes with the context. */
}

int main(void)
{
	struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *devx;
	struct ibv_cq *cq;
	struct mlx5dv_cq dv_cq = { 0 };
	struct mlx5dv_obj obj = { 0 };
	/* Zeroed, because valgrind does not see what process_vm_writev writes. */
	uint8_t in[16] = { 0x04, 0x02 }, out[512] = { 0 };

	open_soft();
	doorbell_pages();
	what_the_device_lacks();
	rates();
	commands();
	objects();
	reserved_numbers();
	devx = mlx5dv_open_device(list[0], &attr);
	CHECK(devx && ibv_close_device(devx) == 0);
	attr.flags = 1 << 9;
	CHECK(!mlx5dv_open_device(list[0], &attr) && errno == EINVAL);
	cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	CHECK(cq && mlx5dv_devx_cq_query(cq, in, sizeof in, out, sizeof out) == EINVAL);
	obj.cq.in = cq;
	obj.cq.out = &dv_cq;
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_CQ) == 0);
	*(uint32_t *)(in + 8) = htobe32(dv_cq.cqn);
	CHECK(mlx5dv_devx_cq_query(cq, in, sizeof in, out, sizeof out) == 0 && out[0] == 0);
	state_of_a_queue_pair(cq);
	CHECK(ibv_destroy_cq(cq) == 0);
	ibv_free_device_list(list);
	close_soft();
	puts("kept");
	return 0;
}
