//! Programs whose calls change files too: each is a process on the plain folder, and a member with a view of its own.

use super::call::Call;
use super::overlay::{Contents, Overlay};
use super::plain::Plain;
use super::random::Random;
use super::{Both, Logged, NAMES, ROOTS, open};
use a2g_overlay::{Access, Act, EntryPath, LowerRoot, Name, Table};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The calls that a member can make in one another.
const MAX_DEPTH: usize = 2;
const MAX_CALLS: u64 = 25;

/// The part of the server: it keeps the table, checks what each member makes of it, and moves contents.
struct Program {
    seed: u64,
    folder: PathBuf,
    table: Table,
    calls: usize,
}

/// The grant of a member.
struct Grant {
    is_read_only: [bool; ROOTS],
    /// The folders, instead of the roots.
    places: Option<[Vec<Name>; ROOTS]>,
}

impl Grant {
    fn allows(&self, path: &EntryPath, act: Act) -> bool {
        let place = self.places.as_ref().map_or(&[][..], |places| &places[path.root]);
        path.names.starts_with(place) && (act == Act::Read || !self.is_read_only[path.root])
    }
}

pub(super) fn run_program(seed: u64, folder: &Path) -> Table {
    let mut random = Random::new(!seed);
    let grant = Grant { is_read_only: [false, random.chance(200)], places: None };
    let plain = Plain::new(roots(folder), grant.is_read_only);
    let lower = folder.join("lower");
    let lower_roots = [0, 1].map(|root| {
        let dir = open(&lower.join(root.to_string()));
        LowerRoot { dir, access: Access::Write }
    });
    let table = Table::new(&lower_roots).unwrap();
    let contents = Contents { base: Some(folder.join("base")), ..Contents::default() };
    let upper = folder.join("upper");
    let overlay = Overlay::of_member(table.clone(), upper, contents, lower, grant.is_read_only);
    let mut both = Both::new(seed, plain, overlay);
    let mut program = Program { seed, folder: folder.into(), table, calls: 0 };
    program.run_member(&mut both, &grant, &mut random, 0);
    let table = both.overlay.into_table();
    program.check(&table, &grant);
    table
}

fn roots(folder: &Path) -> [OwnedFd; ROOTS] {
    [0, 1].map(|root| open(&folder.join("plain").join(root.to_string())))
}

fn place(random: &mut Random) -> Vec<Name> {
    (0..random.below(3)).map(|_| Name::new(OsStr::from_bytes(random.pick(&NAMES))).unwrap()).collect()
}

impl Program {
    /// Runs a member, up to its last call.
    fn run_member(&mut self, both: &mut Both, grant: &Grant, random: &mut Random, depth: usize) {
        for _ in 0..=random.below(MAX_CALLS) {
            // A call with files beyond the places of its caller could move those.
            if depth < MAX_DEPTH && grant.places.is_none() && random.chance(150) {
                self.call(both, grant, random, depth + 1);
            } else if grant.places.is_none() && random.chance(15) {
                both.reload();
            } else if random.chance(30) {
                both.list_during_a_change(random);
            } else {
                both.run_one(random);
            }
        }
        both.compare_trees();
        if grant.places.is_none() {
            both.reload();
            both.compare_trees();
        }
    }

    /// Runs another member in the middle of one.
    fn call(&mut self, caller: &mut Both, callers: &Grant, random: &mut Random, depth: usize) {
        let lent = caller.overlay.lend();
        let removed_before = caller.removed_files();
        self.check(&lent, callers);
        self.table.discard_contents(&lent, &caller.overlay.open_base()).unwrap();
        self.table = lent;
        self.calls += 1;
        let start = self.table.clone();
        let own =
            ["upper", "base"].map(|name| self.folder.join("calls").join(format!("{name}{}", self.calls)));
        let [upper, base] = &own;
        own.iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
        let mut grant =
            Grant { is_read_only: callers.is_read_only.map(|is| is || random.chance(100)), places: None };
        let is_read_only = grant.is_read_only;
        let contents = Contents {
            base: Some(base.clone()),
            from: start.next_content(),
            earlier: caller.overlay.earlier_of_calls(),
        };
        let lower = self.folder.join("lower");
        let overlay = Overlay::of_member(start.clone(), upper.clone(), contents, lower, is_read_only);
        let plain = caller.plain.beside(roots(&self.folder), is_read_only);
        let mut both = Both::new(self.seed, plain, overlay);
        both.compares_folder_times = false;
        if random.chance(500) {
            let places = [place(random), place(random)];
            if both.plain.use_places(&places) {
                assert!(both.overlay.use_places(&places), "{places:?} is there");
                grant.places = Some(places);
            }
        }
        self.run_member(&mut both, &grant, random, depth);
        let contents = both.overlay.all_contents();
        let table = both.overlay.end();
        self.check(&table, &grant);
        self.table.discard_contents(&table, &both.overlay.open_base()).unwrap();
        table.move_contents(start.next_content(), &contents, &caller.overlay.open_base()).unwrap();
        start.discard_contents(&table, &caller.overlay.open_base()).unwrap();
        let left = std::fs::read_dir(upper).unwrap().count();
        assert_eq!(left, 0, "all contents of a member are moved");
        caller.log.calls.push(Logged::Member(std::mem::take(&mut both.log.calls)));
        self.table = table.clone();
        caller.overlay.take_back(table);
        caller.compares_folder_times = false;
        // The content that a file had last, if it was both written and removed by calls, is known to those only.
        for slot in caller.removed_files().into_iter().filter(|slot| !removed_before.contains(slot)) {
            caller.run(&Call::Close { slot });
        }
    }

    fn check(&self, table: &Table, grant: &Grant) {
        let checked = Table::check_member(&self.table, table, |path, act| grant.allows(path, act));
        checked.unwrap_or_else(|error| panic!("{error:?}, granted: {:?}", grant.places));
    }
}
