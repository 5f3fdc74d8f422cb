//! Space that an experiment needs, looked for before it begins.

use std::path::Path;

/// Says how many bytes are needed below `directory`; if they are not free, an error that ends with
/// what to do.
pub(crate) fn check(directory: &Path, needed: u64, advice: &str) -> Result<(), String> {
    let failed = |e| format!("{}: {e}", directory.display());
    let vfs = rustix::fs::statvfs(directory).map_err(failed)?;
    eprintln!("{}", compare(directory, needed, vfs.f_bavail * vfs.f_frsize, advice)?);
    Ok(())
}

fn compare(directory: &Path, needed: u64, available: u64, advice: &str) -> Result<String, String> {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let (directory, needs, has) = (directory.display(), gib(needed), gib(available));
    match needed > available {
        true => Err(format!(
            "{directory} has {has:.1} GiB free, and this experiment needs {needs:.1} GiB there: \
             {advice}"
        )),
        false => Ok(format!("needs {needs:.1} GiB in {directory}, of {has:.1} GiB that are free")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_space_is_refused_with_what_to_do() {
        let needed = 31 << 30;
        let refused = compare(Path::new("/data"), needed, needed - 1, "say --data").unwrap_err();
        assert!(refused.starts_with("/data has 31.0 GiB free"), "{refused}");
        assert!(refused.ends_with("needs 31.0 GiB there: say --data"), "{refused}");
        assert!(compare(Path::new("/data"), needed, needed, "").is_ok());
    }
}
