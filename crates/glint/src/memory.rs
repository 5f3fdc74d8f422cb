//! Memory of processes that move data.

/// Freed memory at the end of a heap that is kept for what comes next.
const KEPT_BYTES: libc::c_int = 64 << 20;
/// A heap grows by so much.
const GROWTH_BYTES: libc::c_int = 1 << 20;
/// Larger blocks are mapped one by one.
const MAPPED_BYTES: libc::c_int = 16 << 20;

/// Has the allocator keep what is freed. Data of writes is kept until it is durable and is freed
/// then, much at once: given back to the kernel it would be mapped, cleared and faulted in again a
/// moment later, which costs more than copying it.
pub(crate) fn keep_freed() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [
        (libc::M_TRIM_THRESHOLD, KEPT_BYTES),
        (libc::M_TOP_PAD, GROWTH_BYTES),
        (libc::M_MMAP_THRESHOLD, MAPPED_BYTES),
    ] {
        // SAFETY: it changes what the allocator does with freed memory, and refers to none.
        if unsafe { libc::mallopt(parameter, value) } == 0 {
            tracing::debug!(parameter, value, "mallopt(3) refused");
        }
    }
}
