//! The OSTs of this process: of a data directory, in the order of their numbers.

use super::data_dir::DataDir;
use super::descriptors;
use crate::records::Records;
use crate::settings::Settings;
use crate::start::start_osts;
use glint_ost::{ObjectStore, OstError, OstSet, SpaceGrants};
use std::sync::Arc;

/// Opens the object stores of a data directory.
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
    Ok(osts.map_err(|reason| data.give_up(&reason))?)
}
