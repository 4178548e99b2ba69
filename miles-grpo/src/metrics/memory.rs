//! Peak memory of the process.

/// Largest resident set so far, in bytes; `None` where the system does not say (it is read from `/proc`).
#[must_use]
pub fn peak_rss_bytes() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// `VmHWM:     12345 kB`
pub(super) fn parse(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}
