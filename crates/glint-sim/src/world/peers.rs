//! Clients of the servers, by their connections; where files have copies, each server is one of the
//! others, and at the end all copies are compared.

use crate::scenario::text;
use crate::world::hosts::{COMMIT_INTERVAL, Host, Hosts, MDS, Process, Servers, address};
use glint_net::{Address, Cluster, InProcess, Remote, RemoteOptions, SessionService, host};
use glint_ost::disk::memory::MemoryDisk;
use glint_ost::disk::{Disk, DiskFile, DiskResult};
use glint_proto::by_hand::hello;
use glint_proto::chain::{Chain, SERVER_MOUNT_POINT};
use glint_proto::message::{Hello, Welcome};
use glint_proto::oss::OssInfo;
use glint_proto::{ClientId, Owner};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Number, as a client, of the first process of a server that is one.
const FIRST_PEER: u64 = 1 << 20;

/// Number of a client.
pub(crate) fn client_id(index: u32) -> ClientId {
    ClientId(1000 + u64::from(index))
}

/// A connection to all servers, of the machine of the calling task.
pub(crate) async fn connect(servers: &Servers, index: u32) -> Result<Cluster<Remote>, String> {
    connect_as(servers, index, None).await
}

/// The same for a machine that shows this certificate.
pub(crate) async fn connect_as(
    servers: &Servers,
    index: u32,
    certificate: Option<[u8; 32]>,
) -> Result<Cluster<Remote>, String> {
    let options = RemoteOptions {
        address: Address::parse(&address(MDS)),
        mount_point: format!("/mnt{index}"),
    };
    let owner = Owner { certificate, secret: 0 };
    let client = client_id(index);
    let (_, session) = servers.connect(client, &hello("", 0), owner).await.map_err(text)?;
    servers.disconnect(&session);
    let welcome = Welcome { session: session.number(), ..servers.welcome() };
    let mount_point = options.mount_point.clone();
    let mds = Remote::simulated(options, client, 0, welcome);
    Ok(Cluster::new(mds, None, mount_point))
}

impl Hosts {
    /// Where files have copies, the server of a machine is a client of all others, too: as soon as
    /// the MDS lets it in.
    pub(super) fn spawn_peers(self: &Rc<Self>, host: usize) {
        if self.layout.replicas < 2 {
            return;
        }
        let (hosts, process) = (self.clone(), self.hosts[host].process.borrow().clone());
        self.executor.spawn_on(self.machine(host), async move {
            match process {
                Some(Process::Mds(server)) => {
                    let transport = InProcess::new(server.clone());
                    server.reach_peers(Cluster::new(transport, None, SERVER_MOUNT_POINT.into()));
                }
                Some(Process::Oss(oss)) => {
                    while !oss.has_chains() {
                        host::sleep(COMMIT_INTERVAL / 10).await;
                    }
                    let mds = hosts.let_in().await;
                    oss.reach_peers(Cluster::new(mds, None, SERVER_MOUNT_POINT.into()));
                }
                None => {}
            }
        });
    }

    /// Has the MDS let a server in as a client, on whose machine this is called.
    async fn let_in(self: &Rc<Self>) -> Remote {
        // Each process is another client.
        let client = ClientId(FIRST_PEER + self.let_in.replace(self.let_in.get() + 1));
        loop {
            host::sleep(COMMIT_INTERVAL / 10).await;
            if !self.hosts[MDS].is_up.get() {
                continue;
            }
            let (servers, welcome) = (self.mds(), Rc::new(RefCell::new(None)));
            let slot = welcome.clone();
            self.executor.spawn_on(self.machine(MDS), async move {
                let owner = Owner { certificate: None, secret: 0 };
                let hello = Hello { mount_point: SERVER_MOUNT_POINT.into(), ..hello("", 0) };
                if let Ok((_, session)) = servers.connect(client, &hello, owner).await {
                    servers.disconnect(&session);
                    let welcome = Welcome { session: session.number(), ..servers.welcome() };
                    slot.replace(Some(welcome));
                }
            });
            host::sleep(COMMIT_INTERVAL / 10).await;
            if let Some(welcome) = welcome.take() {
                let options = RemoteOptions {
                    address: Address::parse(&address(MDS)),
                    mount_point: SERVER_MOUNT_POINT.into(),
                };
                return Remote::simulated(options, client, 0, welcome);
            }
        }
    }

    /// How many copies files have.
    pub(crate) fn replicas(&self) -> usize {
        usize::from(self.layout.replicas.max(1))
    }

    /// Servers that are clients of the MDS now.
    pub(crate) fn peers(&self) -> usize {
        if self.layout.replicas < 2 { 0 } else { self.count() - 1 }
    }

    /// The machine with an OST.
    pub(crate) fn host_of(&self, ost: u16) -> Option<usize> {
        let own = self.hosts[MDS].disks.len() as u16;
        if ost < own {
            return Some(MDS);
        }
        let osses = self.mds().other_servers().infos();
        let is_of = |oss: &&OssInfo| (oss.first_ost..oss.first_ost + oss.osts).contains(&ost);
        let found = osses.iter().find(is_of)?;
        (0..self.count()).find(|host| address(*host) == found.address)
    }

    /// Whether the MDS knows all OSTs, and where copies are to be.
    pub(crate) fn have_joined(&self) -> bool {
        let (servers, replicas) = (self.mds(), self.layout.replicas);
        let has_chains = || !servers.mds().chains().since(0).0.is_empty();
        servers.mds().osts() == self.osts() && (replicas < 2 || has_chains())
    }

    /// Whether all copies of all files are served, and nobody else has any.
    pub(crate) fn are_whole(&self) -> bool {
        let servers = self.mds();
        let table = servers.mds().chains();
        let is_whole = |chain: &Chain| chain.readable().count() == chain.members.len();
        table.former().is_empty() && table.since(0).0.iter().all(is_whole)
    }

    /// Content of each copy of each object, by the names of their files, once all servers have ended.
    pub(crate) fn copies(&self) -> BTreeMap<String, Vec<(String, Vec<u8>)>> {
        let mut found: BTreeMap<String, Vec<(String, Vec<u8>)>> = BTreeMap::new();
        let mut unreadable = BTreeSet::new();
        let disks = |(number, host): (usize, &'_ Host)| {
            let disks = host.disks.iter().enumerate();
            let named = |(ost, disk): (usize, &MemoryDisk)| {
                (format!("OST {ost} of {}", address(number)), disk.clone())
            };
            disks.map(named).collect::<Vec<_>>()
        };
        for (place, disk) in self.hosts.iter().enumerate().flat_map(disks) {
            for directory in (0..=u8::MAX).map(|number| format!("{number:02x}")) {
                for name in disk.names(&directory).unwrap_or_default() {
                    let name = name.to_string_lossy().into_owned();
                    let path = format!("{directory}/{name}");
                    let read = || {
                        let mut bytes = vec![0; disk.size(&path)? as usize];
                        let (file, mut mark) = (disk.open_to_read(&path)?, [0]);
                        file.read(&mut bytes, 0)?;
                        // docs/format.md: nobody reads it, whatever it has.
                        let marked = file.attribute("user.glint.sums", &mut mark).is_ok();
                        DiskResult::Ok((bytes, marked && mark == [u8::MAX]))
                    };
                    let (bytes, is_marked) =
                        read().unwrap_or_else(|error| panic!("{path}: {error}"));
                    if is_marked {
                        unreadable.insert(name.clone());
                    }
                    found.entry(name).or_default().push((place.clone(), bytes));
                }
            }
        }
        found.retain(|name, _| !unreadable.contains(name));
        found
    }
}
