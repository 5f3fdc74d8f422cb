//! Supplementary groups of a process, from proc(5).

/// Groups of the process or thread `pid`; none if it is gone.
pub(crate) fn supplementary_groups(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    parse(&status)
}

fn parse(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.unwrap_or_default().split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_line_is_found() {
        assert_eq!(super::parse("Gid:\t1 1 1 1\nGroups:\t4 24 1000 \nNStgid:\t1\n"), [4, 24, 1000]);
        assert!(super::parse("").is_empty());
    }
}
