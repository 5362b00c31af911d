#include "sim.h"
void sim_capture_kernel(CUstream stream, uint64_t ns){(void)stream;(void)ns;}
