"""A wrong clock for one process: a small library that the loader puts before the system's, which adds the seconds in a
file to each reading of the wall clock. The monotonic clock stays right, as on a machine whose clock is set."""

import subprocess
from pathlib import Path

from murmur.protocol.errors import ConfigError

VARIABLES = ("LD_PRELOAD", "LAB_CLOCK_FILE")
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long off(void) {
  const char *path = getenv("LAB_CLOCK_FILE");
  FILE *file = path ? fopen(path, "r") : NULL;
  long seconds = 0;
  if (file) { if (fscanf(file, "%ld", &seconds) != 1) seconds = 0; fclose(file); }
  return seconds;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += off();
  return result;
}
int gettimeofday(struct timeval *now, void *zone) {
  struct timespec read;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &read)) return -1;
  now->tv_sec = read.tv_sec; now->tv_usec = read.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *out) {
  struct timespec read;
  if (clock_gettime(CLOCK_REALTIME, &read)) return -1;
  if (out) *out = read.tv_sec;
  return read.tv_sec;
}
"""


def build_clock(folder: Path, file: Path) -> dict[str, str]:
    """Compile the library into `folder`; return the environment of a process whose clock is off by the whole seconds in
    `file`. Raises ConfigError without a C compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(_SOURCE)
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as fault:
        raise ConfigError(f"a wrong clock needs a C compiler: cc: {fault.strerror}") from None
    if done.returncode != 0:
        raise ConfigError(f"the library of a wrong clock does not compile: {done.stderr.strip()[:300]}")
    return dict(zip(VARIABLES, (str(library), str(file)), strict=True))
