//! The OSTs of this process: of a data directory, in the order of their numbers.

use crate::data_dir::DataDir;
use crate::descriptors;
use crate::mds_server::Settings;
use glint_ost::{Grants, ObjectStore, OstSet};
use glint_proto::{Bulk, OstRequest};
use std::sync::Arc;

/// OSTs on local disks.
pub type LocalOsts = OstSet;

/// Opens the object stores of a data directory.
pub fn open(data: &DataDir, settings: &Settings) -> Result<LocalOsts, Box<dyn std::error::Error>> {
    let grants = Arc::<Grants>::default();
    let open_files = descriptors::budget(data.osts())?.objects as usize;
    let each = open_files / usize::from(data.osts());
    let store = |index| ObjectStore::open(&data.ost(index), each, grants.clone());
    let stores = (0..data.osts()).map(store).collect::<Result<Vec<_>, _>>()?;
    let osts = OstSet::start(stores, grants, settings.ost_bandwidth, settings.commit_sync);
    Ok(osts.map_err(|reason| data.give_up(&reason))?)
}

/// Waits for the turn of a transfer, where bandwidth is limited.
pub async fn pace(osts: &LocalOsts, index: u16, request: &OstRequest, bulk: &Bulk<'_>) {
    let pause = osts.turn(index, request, bulk);
    if !pause.is_zero() {
        glint_net::host::sleep(pause).await;
    }
}
