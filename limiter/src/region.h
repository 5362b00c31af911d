/* The region as a file: mapping, checking, creating. */
#ifndef LIM_REGION_H
#define LIM_REGION_H

#include "tessera_region.h"
#include "tessera_region_api.h"

/* Maps and checks; *region is untouched on error. Codes of enum tessera_error. */
int lim_region_open(const char *path, struct tessera_region **region);

/* The header's checksum as it should be. */
uint32_t lim_header_checksum(const struct tessera_header *header);

/* One change of the control page under its seqlock. Aligned stores are atomic, so enforcement reads limits without it;
 * the generation is for readers that want several fields of the same moment. */
void lim_begin_change(struct tessera_control *control);
void lim_end_change(struct tessera_control *control);

/* TESSERA_ERROR_OK, or what is wrong with a header whose file has `size` bytes. */
int lim_check_header(const struct tessera_header *header, uint64_t size);

#endif
