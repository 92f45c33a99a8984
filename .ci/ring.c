/* Each rank sends 64 KiB to the next and receives from the one before, again and again; then all add up
 * their numbers. Ends with status 1 if a byte or the sum is wrong. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 1 << 16 };

int main(int argc, char **argv)
{
    static char out[LENGTH], in[LENGTH];
    int rank, size, rounds = argc > 1 ? atoi(argv[1]) : 50;
    long sum, total = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int round = 0; round < rounds; round++) {
        int next = (rank + 1) % size, before = (rank + size - 1) % size;
        char expected = (char)(before + round);

        memset(out, rank + round, LENGTH);
        MPI_Sendrecv(out, LENGTH, MPI_CHAR, next, 0, in, LENGTH, MPI_CHAR, before, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        for (int i = 0; i < LENGTH; i++) {
            if (in[i] != expected) {
                fprintf(stderr, "rank %d, round %d: byte %d is wrong\n", rank, round, i);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
        }
    }
    sum = rank;
    MPI_Allreduce(&sum, &total, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (total != (long)size * (size - 1) / 2)
        MPI_Abort(MPI_COMM_WORLD, 1);
    if (rank == 0)
        printf("%d iters in %d ranks\n", rounds, size);
    MPI_Finalize();
    return 0;
}
