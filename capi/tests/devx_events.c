/* Events of the firmware that a program reads by mlx5dv_devx_get_event: a completion queue and a queue pair, both made by
 * commands. The queue pair goes to ERR, so its receive is flushed, and the armed completion queue reports the completion. */
#include "common.h"
#include <endian.h>
#include <infiniband/mlx5dv.h>

enum { PAGE = 4096, RECORD = 2048, COOKIE = 0x1234 };

static _Alignas(PAGE) uint8_t cq_memory[PAGE], qp_memory[PAGE];

/* A field of a command: its first bit, and the number of its bits. */
static void set(uint8_t *command, unsigned first, unsigned bits, uint64_t value)
{
	for (unsigned i = 0; i < bits; i++) {
		unsigned bit = first + bits - 1 - i;
		if (value >> i & 1)
			command[bit / 8] |= 0x80 >> bit % 8;
	}
}

/* Sends a command that makes an object, and stores the object's number. */
static struct mlx5dv_devx_obj *make(void *command, size_t length, uint32_t *number)
{
	uint8_t out[16] = { 0 };
	struct mlx5dv_devx_obj *made = mlx5dv_devx_obj_create(context, command, length, out, sizeof out);
	CHECK(made);
	*number = out[9] << 16 | out[10] << 8 | out[11];
	return made;
}

static struct mlx5dv_devx_obj *make_cq(struct mlx5dv_devx_umem *umem, struct mlx5dv_devx_uar *uar, uint32_t *number)
{
	uint8_t in[272] = { 0x04, 0x00 };
	uint32_t event_queue;

	CHECK(mlx5dv_devx_query_eqn(context, 0, &event_queue) == 0);
	for (int slot = 0; slot < 16; slot++)
		cq_memory[slot * 64 + 63] = 0xf1;
	set(in, 0x80 + 0x20, 32, umem->umem_id);
	set(in, 0x80 + 0x63, 5, 4);
	set(in, 0x80 + 0x68, 24, uar->page_id);
	set(in, 0x80 + 0xa0, 32, event_queue);
	set(in, 0x80 + 0x1c0, 64, RECORD);
	set(in, 0x2c0, 32, umem->umem_id);
	return make(in, sizeof in, number);
}

/* A reliable connection without a send queue. */
static struct mlx5dv_devx_obj *make_qp_by_command(struct mlx5dv_devx_umem *umem, uint32_t domain, uint32_t cq, uint32_t *number)
{
	uint8_t in[272] = { 0x05, 0x00 };

	set(in, 0xc0 + 0x13, 2, 3);
	set(in, 0xc0 + 0x28, 24, domain);
	set(in, 0xc0 + 0x49, 4, 4);
	set(in, 0xc0 + 0x4d, 3, 2);
	set(in, 0xc0 + 0x50, 1, 1);
	set(in, 0xc0 + 0x3e8, 24, cq);
	set(in, 0xc0 + 0x4e8, 24, cq);
	set(in, 0xc0 + 0x500, 64, RECORD);
	set(in, 0xc0 + 0x720, 32, umem->umem_id);
	set(in, 0x840, 32, umem->umem_id);
	return make(in, sizeof in, number);
}

static void change(struct mlx5dv_devx_obj *qp, uint32_t number, uint8_t opcode, size_t length)
{
	uint8_t in[256] = { 0x05, opcode }, out[16];

	set(in, 0x48, 24, number);
	if (length > 16)
		set(in, 0xc0 + 0xc0 + 0x128, 8, 1);
	CHECK(mlx5dv_devx_obj_modify(qp, in, length, out, sizeof out) == 0);
}

/* Asks for an event at the next completion: the record's second word, then the doorbell. */
static void arm(uint32_t cq, struct mlx5dv_devx_uar *uar, uint32_t sequence)
{
	uint32_t word = sequence << 28 | sequence;

	*(volatile uint32_t *)(cq_memory + RECORD + 4) = htobe32(word);
	__sync_synchronize();
	*(volatile uint64_t *)((char *)uar->base_addr + 0x20) = htobe64((uint64_t)word << 32 | cq);
}

static void flush(struct mlx5dv_devx_obj *qp, uint32_t number)
{
	change(qp, number, 0x02, 256);
	*(volatile uint32_t *)(qp_memory + RECORD) = htobe32(1);
	__sync_synchronize();
	change(qp, number, 0x07, 16);
	change(qp, number, 0x0a, 16);
	*(volatile uint32_t *)(qp_memory + RECORD) = 0;
}

int main(void)
{
	struct mlx5dv_devx_event_channel *whole, *cookies;
	struct mlx5dv_devx_umem *umems[2];
	struct mlx5dv_devx_obj *domain, *cq, *qp;
	struct mlx5dv_devx_uar *uar;
	uint8_t domain_in[16] = { 0x08, 0x00 };
	uint32_t domain_number, cq_number, qp_number;
	uint16_t completion = 0;
	struct {
		struct mlx5dv_devx_async_event_hdr header;
		uint8_t entry[64];
	} event;

	open_soft();
	uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
	umems[0] = mlx5dv_devx_umem_reg(context, cq_memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	umems[1] = mlx5dv_devx_umem_reg(context, qp_memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	whole = mlx5dv_devx_create_event_channel(context, 0);
	cookies = mlx5dv_devx_create_event_channel(context, MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA);
	CHECK(uar && umems[0] && umems[1] && whole && cookies);
	domain = make(domain_in, sizeof domain_in, &domain_number);
	cq = make_cq(umems[0], uar, &cq_number);
	qp = make_qp_by_command(umems[1], domain_number, cq_number, &qp_number);
	CHECK(mlx5dv_devx_subscribe_devx_event(whole, cq, sizeof completion, &completion, COOKIE) == 0);
	CHECK(mlx5dv_devx_subscribe_devx_event(cookies, cq, sizeof completion, &completion, COOKIE + 1) == 0);

	for (uint32_t round = 0; round < 3; round++) {
		arm(cq_number, uar, round);
		flush(qp, qp_number);
		/* Too little space: the event stays. */
		CHECK(mlx5dv_devx_get_event(whole, &event.header, sizeof event - 1) == -1 && errno == EINVAL);
		memset(&event, 0, sizeof event);
		CHECK(mlx5dv_devx_get_event(whole, &event.header, sizeof event) == sizeof event);
		CHECK(event.header.cookie == COOKIE && event.entry[1] == completion);
		CHECK(be32toh(*(uint32_t *)(event.entry + 32 + 24)) == cq_number);
		CHECK(mlx5dv_devx_get_event(cookies, &event.header, sizeof event) == sizeof event.header);
		CHECK(event.header.cookie == COOKIE + 1);
		/* A flushed receive, which the program has read now. */
		CHECK(cq_memory[round * 64 + 63] >> 4 == 14);
		*(volatile uint32_t *)(cq_memory + RECORD) = htobe32(round + 1);
	}
	/* An armed queue without completions, and completions of one that is not armed. */
	CHECK(fcntl(whole->fd, F_SETFL, O_NONBLOCK) == 0 && fcntl(cookies->fd, F_SETFL, O_NONBLOCK) == 0);
	flush(qp, qp_number);
	CHECK(cq_memory[3 * 64 + 63] >> 4 == 14);
	CHECK(mlx5dv_devx_get_event(whole, &event.header, sizeof event) == -1 && errno == EAGAIN);
	CHECK(mlx5dv_devx_get_event(cookies, &event.header, sizeof event) == -1 && errno == EAGAIN);
	/* Space for nothing is too little. */
	CHECK(mlx5dv_devx_get_event(whole, NULL, 0) == -1 && errno == EINVAL);

	CHECK(mlx5dv_devx_obj_destroy(qp) == 0 && mlx5dv_devx_obj_destroy(cq) == 0 && mlx5dv_devx_obj_destroy(domain) == 0);
	CHECK(mlx5dv_devx_umem_dereg(umems[0]) == 0 && mlx5dv_devx_umem_dereg(umems[1]) == 0);
	mlx5dv_devx_destroy_event_channel(whole);
	mlx5dv_devx_destroy_event_channel(cookies);
	mlx5dv_devx_free_uar(uar);
	close_soft();
	puts("kept");
	return 0;
}
