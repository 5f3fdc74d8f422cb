//! The servers of a file system whose directories are checked, and their object stores.

use glint_ost::ObjectStore;
use glint_proto::ObjectId;
use glint_server::data_dir::{DataDir, Role};
use glint_server::{Records, awaited_searches};
use std::error::Error;
use std::path::PathBuf;

/// Objects that are open at once: one after the other is read.
const OPEN_FILES: usize = 16;

/// Servers, the one whose directory was named first of all.
pub(super) struct Servers {
    all: Vec<DataDir>,
    stores: Vec<Store>,
}

/// Store of an OST.
pub(super) struct Store {
    /// Number of the OST; in a directory of `glint oss` alone, its number there.
    pub(super) ost: u16,
    /// Which server it belongs to.
    server: usize,
    /// The host of the server has lost power since that ran, or was started again; or the OST was not
    /// searched since it had been.
    after_loss: bool,
    pub(super) objects: ObjectStore,
}

impl Servers {
    /// Opens the stores of a server, and those of others of its file system.
    pub(super) fn open(first: DataDir, others: &[PathBuf]) -> Result<Servers, Box<dyn Error>> {
        let mut servers = Servers { all: Vec::new(), stores: Vec::new() };
        if first.role() == Role::Oss && !others.is_empty() {
            let path = first.path().display();
            return Err(format!(
                "{path} is of `glint oss`; --oss goes with the directory of the server with the MDS"
            )
            .into());
        }
        let known = first.osses();
        servers.add(first, 0)?;
        for path in others {
            let data = DataDir::open(path)?;
            let uuid = format!("{:032x}", data.uuid());
            let known = known.iter().find(|oss| oss.uuid == uuid);
            let oss = known.ok_or_else(|| {
                format!("{} is no directory of `glint oss` of this file system", path.display())
            })?;
            servers.add(data, oss.first_ost)?;
        }
        Ok(servers)
    }

    fn add(&mut self, data: DataDir, first_ost: u16) -> Result<(), Box<dyn Error>> {
        data.find_osts()?;
        let (lost, searches) = (data.is_after_loss(), awaited_searches(&data)?);
        for index in 0..data.osts() {
            let after_loss = lost || searches.contains(&index);
            let objects = ObjectStore::open(&data.ost(index), OPEN_FILES, Default::default())?;
            let ost = first_ost + index;
            self.stores.push(Store { ost, server: self.all.len(), after_loss, objects });
        }
        self.all.push(data);
        Ok(())
    }

    /// Their data directories.
    pub(super) fn all(&self) -> &[DataDir] {
        &self.all
    }

    /// The stores of all.
    pub(super) fn stores(&self) -> &[Store] {
        &self.stores
    }

    /// The store of an OST, if it is here.
    pub(super) fn store(&self, ost: u16) -> Option<&ObjectStore> {
        self.stores.iter().find(|store| store.ost == ost).map(|store| &store.objects)
    }

    /// Whether the next start of a server finds that a copy was changed not long before a loss of power,
    /// whatever its log has of that.
    pub(super) fn is_unsealed(&self, ost: u16, object: ObjectId) -> bool {
        let store = self.stores.iter().find(|store| store.ost == ost);
        store.is_some_and(|store| store.after_loss && !store.objects.is_sealed(object))
    }

    /// Which server has an OST.
    pub(super) fn server_of(&self, ost: u16) -> Option<usize> {
        self.stores.iter().find(|store| store.ost == ost).map(|store| store.server)
    }

    /// Number of OSTs of the first one.
    pub(super) fn own(&self) -> u16 {
        self.all.first().map_or(0, DataDir::osts)
    }
}
