/* How NCCL loads libibverbs (src/misc/ibvsymbols.cc): libibverbs.so first, then libibverbs.so.1; 22 names of version 1.1,
 * of which none may be missing, and some newer ones. Then as far as a device goes without a peer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <infiniband/verbs.h>

#undef ibv_query_port
#undef ibv_reg_mr

static const char *const needed[] = {
	"ibv_get_device_list", "ibv_free_device_list", "ibv_get_device_name", "ibv_open_device", "ibv_close_device",
	"ibv_get_async_event", "ibv_ack_async_event", "ibv_query_device", "ibv_query_port", "ibv_query_gid", "ibv_query_qp",
	"ibv_alloc_pd", "ibv_dealloc_pd", "ibv_reg_mr", "ibv_dereg_mr", "ibv_create_cq", "ibv_destroy_cq", "ibv_create_qp",
	"ibv_modify_qp", "ibv_destroy_qp", "ibv_fork_init", "ibv_event_type_str",
};
static const char *const newer[][2] = {
	{ "ibv_reg_mr_iova2", "IBVERBS_1.8" }, { "ibv_reg_dmabuf_mr", "IBVERBS_1.12" }, { "ibv_query_ece", "IBVERBS_1.10" },
	{ "ibv_set_ece", "IBVERBS_1.10" }, { "ibv_query_port_speed", "IBVERBS_1.16" },
};

int main(void)
{
	void *verbs = dlopen("libibverbs.so", RTLD_NOW), *again = dlopen("libibverbs.so.1", RTLD_NOW);
	void *direct = dlopen("libmlx5.so.1", RTLD_NOW);
	struct ibv_device **(*list)(int *), **devices;
	struct ibv_context *(*open_device)(struct ibv_device *), *context;
	int (*close_device)(struct ibv_context *), (*fork_init)(void), count = 0;
	unsigned i;

	/* One file under three names is one library in the process. */
	if (!verbs || verbs != again || verbs != direct)
		return fprintf(stderr, "dlopen: %s\n", dlerror()), 1;
	for (i = 0; i < sizeof needed / sizeof *needed; i++)
		if (!dlvsym(verbs, needed[i], "IBVERBS_1.1"))
			return fprintf(stderr, "%s\n", dlerror()), 1;
	for (i = 0; i < sizeof newer / sizeof *newer; i++)
		if (!dlvsym(verbs, newer[i][0], newer[i][1]))
			return fprintf(stderr, "%s\n", dlerror()), 1;
	if (!dlvsym(direct, "mlx5dv_is_supported", "MLX5_1.8"))
		return fprintf(stderr, "%s\n", dlerror()), 1;
	fork_init = dlvsym(verbs, "ibv_fork_init", "IBVERBS_1.1");
	list = dlvsym(verbs, "ibv_get_device_list", "IBVERBS_1.1");
	open_device = dlvsym(verbs, "ibv_open_device", "IBVERBS_1.1");
	close_device = dlvsym(verbs, "ibv_close_device", "IBVERBS_1.1");
	fork_init();
	devices = list(&count);
	if (!devices || count != 1)
		return fprintf(stderr, "%d devices\n", count), 1;
	context = open_device(devices[0]);
	if (!context || !context->ops.poll_cq || !context->ops.post_send || !context->ops.post_recv)
		return fprintf(stderr, "no context\n"), 1;
	close_device(context);
	puts("kept");
	return 0;
}
