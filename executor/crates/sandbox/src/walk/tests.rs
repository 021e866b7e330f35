//! Generated path operations against a real, partly granted folder. None of them may read, change, move, link or
//! create anything that is not granted.

use super::*;
use crate::egress::Network;
use crate::state::StoreState;
use crate::{Abort, Input, Sandbox};
use a2g_capability::{Area, Authority, Ceilings, Claims, Glob, Grant, Mount, Mounts, Permit, Tree};
use a2g_types::limit::{Access, Layer, Limit, LimitMap};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::filesystem::WasiFilesystemView as _;
use wasmtime_wasi::p2::bindings::filesystem::preopens::Host as _;
use wasmtime_wasi::p2::bindings::filesystem::types::{
    HostDescriptor, HostDirectoryEntryStream, NewTimestamp,
};

/// The dice, each with a thread of its own.
const DICE: [Dice; 2] = [Dice(0x2545_f491_4f6c_dd1d), Dice(0x9e37_79b9_7f4a_7c15)];
/// The number of operation sequences of each, and the most operations of one.
const SEQUENCES: u32 = 50_000;
const MAX_STEPS: u32 = 8;
/// The number of sequences on one folder before it is rebuilt.
const SEQUENCES_OF_ONE_WORLD: u32 = 25;

const GRANTED: &str = "/w/{**/*.md,x/open/**,exact,one?}";
const BLOCKED: [&str; 2] = ["/w/priv/**", "hidden.md"];

/// The content of every file that is not granted starts with this.
const SECRET: &str = "not granted: ";

const FOLDERS: [&str; 8] = ["w", "w/d", "w/x", "w/x/open", "w/x/open/sub", "w/priv", "w/one1", "outside"];
const FILES: [&str; 13] = [
    "w/a.md",
    "w/b.txt",
    "w/exact",
    "w/d/c.md",
    "w/d/s.txt",
    "w/d/hidden.md",
    "w/x/open/f",
    "w/x/open/sub/g.txt",
    "w/x/open/sub/hidden.md",
    "w/x/n.txt",
    "w/priv/p.md",
    "w/one1/s.txt",
    "outside/o.md",
];
const LINKS: [(&str, &str); 9] = [
    ("w/l.md", "b.txt"),
    ("w/ld", "d"),
    ("w/up", ".."),
    ("w/x/open/esc", "../../b.txt"),
    ("w/x/open/dir", "../../d"),
    ("w/x/open/md", "../../d/c.md"),
    ("w/x/open/out", "../../../outside"),
    ("w/x/open/round", "round"),
    ("w/x/open/priv", "../../priv"),
];
const NAMES: [&str; 30] = [
    "a.md",
    "b.txt",
    "exact",
    "d",
    "c.md",
    "s.txt",
    "hidden.md",
    "x",
    "open",
    "f",
    "sub",
    "g.txt",
    "n.txt",
    "priv",
    "p.md",
    "one1",
    "l.md",
    "ld",
    "up",
    "esc",
    "dir",
    "out",
    "md",
    "new.md",
    "new",
    "newer",
    ".",
    "..",
    "..",
    "",
];

/// A generator with a fixed seed: the same numbers in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from((self.0 >> 24) % u64::from(sides)).unwrap()
    }

    fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[usize::try_from(self.roll(u32::try_from(items.len()).unwrap())).unwrap()]
    }

    /// A path of random names, which in half of the cases begins with an entry of the initial tree.
    fn path(&mut self) -> String {
        let mut names: Vec<_> = (0..=self.roll(3)).map(|_| self.pick(&NAMES)).collect();
        if self.roll(2) == 0 {
            let links = LINKS.map(|(name, _)| name);
            let known = [&FOLDERS[1..], &FILES, &links].concat();
            let known = self.pick(&known);
            names.truncate(usize::try_from(self.roll(3)).unwrap().saturating_sub(1));
            names.insert(0, known.strip_prefix("w/").unwrap_or(known));
        }
        let end = self.pick(&["", "", "", "/", "//", "/.", "/.."]);
        let start = if self.roll(30) == 0 { "/" } else { "" };
        format!("{start}{}{end}", names.join("/"))
    }

    fn flags(&mut self) -> PathFlags {
        if self.roll(2) == 0 { PathFlags::empty() } else { PathFlags::SYMLINK_FOLLOW }
    }
}

/// A folder that is partly granted as `/w`, beside one that is not granted.
struct World {
    folder: tempfile::TempDir,
    root: Arc<Root>,
}

/// The facts about an entry on the disk: inode, number of names, time of the last change, content.
type Facts = (u64, u64, (i64, i64), Option<String>);

impl World {
    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Rebuilds the initial tree.
    fn build(&self) {
        for entry in fs::read_dir(self.folder.path()).unwrap() {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
        FOLDERS.iter().for_each(|folder| fs::create_dir(self.at(folder)).unwrap());
        for file in FILES {
            let secret = if self.granted(file) { "" } else { SECRET };
            fs::write(self.at(file), format!("{secret}{file}")).unwrap();
        }
        for (name, target) in LINKS {
            symlink(target, self.at(name)).unwrap();
        }
    }

    /// The oracle: applies the patterns to a host path without walking it.
    fn granted(&self, path: &str) -> bool {
        self.root.grants(&format!("/{path}"))
    }

    /// True if something below this folder may be granted, so that a guest may walk through it.
    fn can_grant_below(&self, path: &str) -> bool {
        self.root.can_grant_below(&format!("/{path}"))
    }

    /// The path of an open file or folder according to the kernel, relative to the test's folder.
    fn path_of(&self, audited: &mut AuditedFs<'_>, fd: &Resource<Descriptor>) -> String {
        let handle = match audited.0.wasi.ctx().table.get(fd).unwrap() {
            Descriptor::Dir(dir) => dir.dir.as_raw_fd(),
            Descriptor::File(file) => file.file.as_raw_fd(),
        };
        let path = fs::read_link(format!("/proc/self/fd/{handle}")).unwrap();
        path.strip_prefix(self.folder.path()).unwrap().to_str().unwrap().to_owned()
    }

    /// Every entry that is not granted, by its path.
    fn outside(&self) -> BTreeMap<String, Facts> {
        let mut seen = BTreeMap::new();
        self.look(self.folder.path(), &mut seen);
        seen
    }

    fn look(&self, folder: &Path, seen: &mut BTreeMap<String, Facts>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(self.folder.path()).unwrap().to_str().unwrap().to_owned();
            if metadata.is_dir() {
                self.look(&path, seen);
            }
            if self.granted(&name) {
                continue;
            }
            let changed = (metadata.ctime(), metadata.ctime_nsec());
            let facts = match metadata.file_type() {
                kind if kind.is_file() => {
                    (metadata.ino(), metadata.nlink(), changed, Some(fs::read_to_string(&path).unwrap()))
                }
                kind if kind.is_symlink() => {
                    let target = fs::read_link(&path).unwrap().to_str().unwrap().to_owned();
                    (metadata.ino(), 1, changed, Some(target))
                }
                // Changes of granted entries may change the link count and the times of their
                // folder.
                _folder => (metadata.ino(), 0, (0, 0), None),
            };
            seen.insert(name, facts);
        }
    }
}

fn ceilings() -> Ceilings {
    let counts = [Limit::Written, Limit::Created, Limit::DirectoryEntries];
    let unbounded = |limits: LimitMap<u64>, limit| limits.with_amount(limit, u64::MAX);
    let limits = counts.into_iter().fold(LimitMap::defaults(), unbounded);
    let areas = vec![Tree::parse_path("/w").unwrap().into()];
    Ceilings { limits, areas, access: Access::ReadWrite, hard_links: true, ..Ceilings::closed() }
}

fn grant(ceilings: &Ceilings) -> Grant {
    let claims = Claims {
        areas: Some(Area::parse(GRANTED).unwrap()),
        blocked: BLOCKED.iter().flat_map(|blocked| Glob::parse_blocking(blocked).unwrap()).collect(),
        ..Claims::default()
    };
    Grant::meet(crate::egress::test_authority(), [(Layer::Verdict, claims)], ceilings).unwrap()
}

/// One operation of a guest, from one of its open folders.
async fn operate(
    world: &World,
    audited: &mut AuditedFs<'_>,
    open: &mut Vec<Resource<Descriptor>>,
    dice: &mut Dice,
    log: &mut Vec<String>,
) {
    let any = |dice: &mut Dice, open: &[Resource<Descriptor>]| {
        let index = usize::try_from(dice.roll(u32::try_from(open.len()).unwrap())).unwrap();
        (index, Resource::new_borrow(open[index].rep()))
    };
    let ((from, fd), path) = (any(dice, open), dice.path());
    let log_line = |name: &str, result: FsResult<()>| {
        format!(
            "{name} {from} {path:?} {:?}",
            result.map_err(|error| error.downcast().map_or("a trap".into(), |code| format!("{code:?}")))
        )
    };
    let line = match dice.roll(14) {
        0..=3 => {
            let flags = [OpenFlags::empty(), OpenFlags::CREATE, OpenFlags::TRUNCATE, OpenFlags::DIRECTORY];
            let flags = flags[usize::try_from(dice.roll(4)).unwrap()];
            let write = if dice.roll(2) == 0 { DescriptorFlags::empty() } else { DescriptorFlags::WRITE };
            let opened =
                audited.open_at(fd, dice.flags(), path.clone(), flags, DescriptorFlags::READ | write).await;
            match opened {
                Ok(opened) => {
                    let again = || Resource::new_borrow(opened.rep());
                    let kind = audited.get_type(again()).await.unwrap();
                    let path = world.path_of(audited, &opened);
                    let on_the_way = kind == DescriptorType::Directory && world.can_grant_below(&path);
                    assert!(world.granted(&path) || on_the_way, "opened {path} after {log:#?}");
                    if let Ok((read, _)) = audited.read(again(), 1000, 0).await {
                        let read = String::from_utf8(read).unwrap();
                        assert!(!read.contains(SECRET), "read {read:?} at {from} {path:?} after {log:#?}");
                    }
                    let _may_be_a_folder = audited.write(again(), b"written".to_vec(), 0).await;
                    let set = audited.set_times(again(), NewTimestamp::Now, NewTimestamp::Now).await;
                    assert!(set.is_err() || world.granted(&path), "times of {path} after {log:#?}");
                    open.push(opened);
                    log_line(&format!("open {kind:?}"), Ok(()))
                }
                Err(error) => log_line("open", Err(error)),
            }
        }
        4 => log_line("stat", audited.stat_at(fd, dice.flags(), path.clone()).await.map(drop)),
        5 => match audited.read_directory(Resource::new_borrow(fd.rep())).await {
            Ok(listing) => {
                let folder = world.path_of(audited, &fd);
                while let Some(entry) =
                    audited.read_directory_entry(Resource::new_borrow(listing.rep())).await.unwrap()
                {
                    let path = format!("{folder}/{}", entry.name);
                    assert!(
                        world.granted(&path) || world.can_grant_below(&path),
                        "listed {path} after {log:#?}"
                    );
                }
                HostDirectoryEntryStream::drop(audited, listing).unwrap();
                log_line("list", Ok(()))
            }
            Err(error) => log_line("list", Err(error)),
        },
        6 => log_line("mkdir", audited.create_directory_at(fd, path.clone()).await),
        7 => log_line("unlink", audited.unlink_file_at(fd, path.clone()).await),
        8 => log_line("rmdir", audited.remove_directory_at(fd, path.clone()).await),
        9 | 10 => {
            let ((to, new_fd), new) = (any(dice, open), dice.path());
            let renamed = audited.rename_at(fd, path.clone(), new_fd, new.clone()).await;
            log_line(&format!("rename to {to} {new:?}"), renamed)
        }
        11 => {
            let ((to, new_fd), new) = (any(dice, open), dice.path());
            let linked = audited.link_at(fd, PathFlags::empty(), path.clone(), new_fd, new.clone()).await;
            log_line(&format!("link to {to} {new:?}"), linked)
        }
        12 => {
            let target = dice.path();
            log_line(
                &format!("symlink to {target:?}"),
                audited.symlink_at(fd, target.clone(), path.clone()).await,
            )
        }
        _times => {
            let now = NewTimestamp::Now;
            log_line("times", audited.set_times_at(fd, dice.flags(), path.clone(), now, now).await)
        }
    };
    log.push(line);
}

#[test]
fn nothing_that_is_not_granted_is_touched_whatever_a_guest_does() {
    std::thread::scope(|scope| {
        for dice in DICE {
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(try_sequences(dice));
            });
        }
    });
}

/// Runs sequences, after which all that is not granted has to be as before.
async fn try_sequences(mut dice: Dice) {
    let ceilings = ceilings();
    // In memory if possible: most of the time goes into rebuilding the files.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let world = World { folder, root: Arc::clone(&grant(&ceilings).roots()[0]) };
    world.build();
    let guest = Tree::parse_path("/w").unwrap();
    let mounts = Mounts::new(vec![Mount { guest, host: world.at("w") }]).unwrap();
    let sandbox = Sandbox::builder().authority(crate::egress::test_authority()).build().unwrap();
    let mut sequences = 0;
    let mut worked = 0u32;
    let mut refused = 0u32;
    while sequences < SEQUENCES {
        world.build();
        let before = world.outside();
        let permit = Permit::open(grant(&ceilings), &mounts, &ceilings.areas, |_| true).unwrap();
        let execution = sandbox.begin(&permit, Network::Off, Arc::<Abort>::default());
        let mut store = sandbox.make_store(permit, &Input::Arguments(String::new()), &execution).unwrap();
        store.data_mut().links = true;
        let mut log = Vec::new();
        for _ in 0..SEQUENCES_OF_ONE_WORLD {
            sequences += 1;
            let state: &mut StoreState = store.data_mut();
            let mut open: Vec<_> =
                state.filesystem().get_directories().unwrap().into_iter().map(|(fd, _)| fd).collect();
            // The second folder is the placeholder for everything outside, which other tests cover.
            let outside = open.pop().unwrap();
            let mut audited = AuditedFs(state);
            HostDescriptor::drop(&mut audited, outside).unwrap();
            for _ in 0..=dice.roll(MAX_STEPS) {
                operate(&world, &mut audited, &mut open, &mut dice, &mut log).await;
            }
            for fd in open {
                HostDescriptor::drop(&mut audited, fd).unwrap();
            }
            assert!(state.walked_paths.is_empty(), "a path is forgotten when its handle is dropped");
        }
        assert_eq!(world.outside(), before, "after {log:#?}");
        let counted = log.iter().filter(|line| line.ends_with("Ok(())")).count();
        worked += u32::try_from(counted).unwrap();
        refused += u32::try_from(log.len() - counted).unwrap();
    }
    // The names are so few that many operations succeed, and many are refused.
    assert!(worked > refused / 20 && refused > worked / 20, "{worked} worked and {refused} did not");
}

#[test]
fn an_execution_of_another_permit_gets_no_store() {
    let ceilings = ceilings();
    let sandbox = Sandbox::builder().build().unwrap();
    let [own, other] = [(); 2].map(|()| Permit::without_access(&ceilings));
    let execution = sandbox.begin(&own, Network::Off, Arc::<Abort>::default());
    let input = Input::Arguments(String::new());
    let error = sandbox.make_store(other, &input, &execution).err().unwrap();
    assert_eq!(error.to_string(), "this execution was begun for another permit");
    assert!(sandbox.make_store(own, &input, &execution).is_ok());
}

#[test]
fn a_permit_of_another_engine_gets_no_store() {
    let ceilings = Ceilings::closed();
    let mounts = Mounts::new(Vec::new()).unwrap();
    let input = Input::Arguments(String::new());
    let permit = |authority: &Authority| {
        let grant = Grant::meet(authority, [(Layer::Verdict, Claims::default())], &ceilings).unwrap();
        Permit::open(grant, &mounts, &ceilings.areas, |_| true).unwrap()
    };
    let store_error = |sandbox: &Sandbox, permit: Permit| {
        let execution = sandbox.begin(&permit, Network::Off, Arc::<Abort>::default());
        sandbox.make_store(permit, &input, &execution).err().map(|error| error.to_string())
    };
    let own = crate::egress::test_authority();
    let other = Authority::for_engine().unwrap();
    let sandbox = Sandbox::builder().authority(own).build().unwrap();
    assert_eq!(store_error(&sandbox, permit(own)), None);
    assert_eq!(store_error(&sandbox, Permit::without_access(&ceilings)), None);
    let refused = Some("the permit is for another engine".to_owned());
    assert_eq!(store_error(&sandbox, permit(&other)), refused);
    let of_no_engine = Sandbox::builder().build().unwrap();
    assert_eq!(store_error(&of_no_engine, permit(own)), refused);
}
