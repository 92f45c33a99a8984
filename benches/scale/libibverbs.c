/* What main.rs measures, with libibverbs: libibverbs DEVICE COUNT prints an object as main.rs does with --json. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void *need(void *object, const char *what)
{
	if (!object) {
		perror(what);
		exit(1);
	}
	return object;
}

/* Shows in the trace as a look for a file of this name. */
static void phase(const char *name)
{
	access(name, F_OK);
}

static double nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

/* Bytes of this process that are in memory (VmRSS of proc_pid_status(5)). */
static long resident(void)
{
	FILE *status = need(fopen("/proc/self/status", "r"), "/proc/self/status");
	char line[256];
	long kib = 0;

	while (fgets(line, sizeof(line), status))
		if (sscanf(line, "VmRSS: %ld", &kib) == 1)
			break;
	fclose(status);
	return kib * 1024;
}

int main(int argc, char **argv)
{
	const char *wanted = argc > 1 ? argv[1] : "mlx5_0";
	int count = argc > 2 ? atoi(argv[2]) : 1000;
	struct ibv_context *context = NULL;

	struct ibv_device **list = need(ibv_get_device_list(NULL), "ibv_get_device_list");
	for (struct ibv_device **device = list; *device && !context; device++)
		if (!strcmp(ibv_get_device_name(*device), wanted))
			context = ibv_open_device(*device);
	need(context, "ibv_open_device");
	ibv_free_device_list(list);
	struct ibv_pd *pd = need(ibv_alloc_pd(context), "ibv_alloc_pd");
	struct ibv_cq *cq = need(ibv_create_cq(context, 1023, NULL, NULL, 0), "ibv_create_cq");
	struct ibv_td_init_attr nothing = { 0 };
	struct ibv_td *td = need(ibv_alloc_td(context, &nothing), "ibv_alloc_td");
	struct ibv_parent_domain_init_attr parents = { .pd = pd, .td = td };
	struct ibv_pd *domain = need(ibv_alloc_parent_domain(context, &parents), "ibv_alloc_parent_domain");
	struct ibv_qp **all = need(calloc(count, sizeof(*all)), "calloc");
	/* Each page of it is written before memory is measured. */
	memset(all, 1, count * sizeof(*all));

	long before = resident();
	phase("/phase/create");
	double start = nanoseconds();
	for (int i = 0; i < count; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq,
			.recv_cq = cq,
			.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
			.qp_type = IBV_QPT_RC,
		};
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
		all[i] = need(ibv_create_qp(domain, &init), "ibv_create_qp");
		if (ibv_modify_qp(all[i], &attr,
				  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
			need(NULL, "ibv_modify_qp");
	}
	double created = (nanoseconds() - start) / count;
	phase("/phase/created");
	long bytes = (resident() - before) / count;
	phase("/phase/destroy");
	start = nanoseconds();
	for (int i = 0; i < count; i++)
		if (ibv_destroy_qp(all[i]))
			need(NULL, "ibv_destroy_qp");
	double destroyed = (nanoseconds() - start) / count;
	phase("/phase/end");
	printf("{\"queue_pairs\":%d,\"create_ns\":%.0f,\"destroy_ns\":%.0f,\"bytes\":%ld}\n", count, created, destroyed,
	       bytes);
	return 0;
}
