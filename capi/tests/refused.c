/* Calls direct verbs of which the page says that they are refused: names that return a code or a pointer, as arguments. They look at
 * none of their arguments. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **names)
{
	void *library = dlopen("libmlx5.so.1", RTLD_NOW);
	int wrong = library == NULL;

	for (int n = 1; n < count && library; n++) {
		uintptr_t (*verb)(void) = (uintptr_t (*)(void))dlsym(library, names[n]);
		uintptr_t answer;

		if (!verb) {
			fprintf(stderr, "%s is not there\n", names[n]);
			wrong = 1;
			continue;
		}
		errno = 0;
		answer = verb();
		if (errno != EOPNOTSUPP || (answer != 0 && (int)answer != EOPNOTSUPP)) {
			fprintf(stderr, "%s: answer %#lx, errno %d\n", names[n], (unsigned long)answer, errno);
			wrong = 1;
		}
	}
	if (!wrong)
		printf("kept\n");
	return wrong;
}
