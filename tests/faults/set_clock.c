/* A clock that can be set while a program runs: the time of day, and the seconds that the file $SET_CLOCK holds. */

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const long long none = 0;
static const volatile long long *ahead = &none;

__attribute__((constructor)) static void open_file(void)
{
	int file = open(getenv("SET_CLOCK"), O_RDONLY);
	void *shared = mmap(0, sizeof none, PROT_READ, MAP_SHARED, file, 0);

	if (shared == MAP_FAILED)
		abort();
	ahead = shared;
	close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	long failed = syscall(SYS_clock_gettime, clock, now);

	if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		now->tv_sec += *ahead;
	return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec time;

	clock_gettime(CLOCK_REALTIME, &time);
	now->tv_sec = time.tv_sec;
	now->tv_usec = time.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *to)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (to)
		*to = now.tv_sec;
	return now.tv_sec;
}
