//! The OSTs of this process: of a data directory, in the order of their numbers.
//!
//! Invariant: an OST whose disk stands still holds up no request that needs another file system, unless
//! it is that of the tables. What may wait for it is handed over to threads of its own
//! ([`OstSet::hand_over`]) wherever there is such a request, and nowhere else.

use super::data_dir::{DataDir, Role};
use super::descriptors;
use crate::records::Records;
use crate::settings::Settings;
use crate::start::start_osts;
use glint_ost::{ObjectStore, OstError, OstSet, SpaceGrants};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Opens the object stores of a data directory, of which the engine is open if it has one.
pub(super) fn open(
    data: &DataDir,
    settings: &Settings,
) -> Result<OstSet, Box<dyn std::error::Error>> {
    data.find_osts()?;
    let grants = Arc::<SpaceGrants>::default();
    let open_files = descriptors::budget(data.osts())?.objects as usize;
    let each = open_files / usize::from(data.osts());
    let store = |index| {
        let store = ObjectStore::open(&data.ost(index), each, grants.clone())?;
        Ok::<_, OstError>(store.keeping(settings.object_cache))
    };
    let stores = (0..data.osts()).map(store).collect::<Result<Vec<_>, _>>()?;
    let osts = start_osts(data, stores, grants, settings, data.is_after_loss());
    let mut osts = osts.map_err(|reason| data.give_up(&reason))?;
    let handed_over = handed_over(data)?;
    if !handed_over.is_empty() {
        tracing::info!(
            osts = ?handed_over,
            "there are several file systems: threads of their own make the changes of these OSTs"
        );
    }
    handed_over.into_iter().for_each(|index| osts.hand_over(index));
    Ok(osts)
}

/// OSTs of a data directory whose disks no thread waits for that has other work.
fn handed_over(data: &DataDir) -> Result<Vec<u16>, String> {
    let file_system = |path: PathBuf| match std::fs::metadata(&path) {
        Ok(found) => Ok(found.dev()),
        Err(error) => Err(format!("{}: {error}", path.display())),
    };
    let osts = (0..data.osts()).map(|index| file_system(data.ost(index).join("objects")));
    let osts = osts.collect::<Result<Vec<_>, _>>()?;
    let tables = match data.role() {
        Role::Mds => Some(file_system(data.mds())?),
        Role::Oss => None,
    };
    Ok(beside_others(tables, &osts))
}

/// Of OSTs on these file systems, those beside which something goes on when their disks stand still.
fn beside_others(tables: Option<u64>, osts: &[u64]) -> Vec<u16> {
    let is_beside = |its: u64| match tables {
        // Without the tables a thread that executes requests soon waits for them.
        Some(tables) => its != tables,
        None => osts.iter().any(|other| *other != its),
    };
    (0..).zip(osts).filter(|(_, its)| is_beside(**its)).map(|(index, _)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ost_hands_over_where_others_go_on_without_its_file_system() {
        let check = |tables: Option<u64>, osts: &[u64], handed_over: &[u16]| {
            assert_eq!(beside_others(tables, osts), handed_over, "{tables:?} {osts:?}");
        };
        check(Some(1), &[1, 1], &[]);
        check(Some(1), &[1, 2], &[1]);
        check(Some(1), &[2, 2], &[0, 1]);
        check(Some(1), &[1, 2, 1, 3], &[1, 3]);
        check(None, &[2], &[]);
        check(None, &[2, 2], &[]);
        check(None, &[2, 3], &[0, 1]);
        check(None, &[2, 3, 2], &[0, 1, 2]);
    }

    #[test]
    fn a_data_directory_on_one_file_system_hands_nothing_over() {
        for role in [Role::Mds, Role::Oss] {
            let dir = tempfile::tempdir().unwrap();
            let data = DataDir::open_or_create(&dir.path().join("data"), Some(3), role).unwrap();
            data.find_osts().unwrap();
            if role == Role::Mds {
                std::fs::create_dir_all(data.mds()).unwrap();
            }
            assert_eq!(handed_over(&data), Ok(Vec::new()));
        }
    }
}
