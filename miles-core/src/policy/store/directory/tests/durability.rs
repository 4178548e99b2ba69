//! A model of what a power cut leaves of file operations: the files' data and the directories' names that were not made
//! durable are lost, kept, or something in between, each apart from the others.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// One operation that was carried out.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    CreateDir(PathBuf),
    Create(PathBuf),
    Write(PathBuf, Vec<u8>),
    Sync(PathBuf),
    Rename(PathBuf, PathBuf),
    SyncDir(PathBuf),
    RemoveDir(PathBuf),
}

/// What becomes of a file's data that was not synced.
#[derive(Clone, Copy, Debug)]
pub(super) enum Data {
    Lost,
    Kept,
    Half,
    /// The length is kept, the data is not.
    Zeros,
}

/// What a power cut does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// All unsynced data this way, all unsynced names kept or lost.
    Uniform(Data, bool),
    /// Each by a draw of its own.
    Drawn(u64),
}

/// A directory tree with what is durable of it.
pub(super) struct Disk {
    root: PathBuf,
    nodes: Vec<Node>,
}

enum Node {
    File { written: Vec<u8>, synced: Vec<u8> },
    Dir { durable: BTreeMap<String, usize>, pending: Vec<Change> },
}

#[derive(Clone)]
enum Change {
    Add(String, usize),
    Remove(String),
    Rename(String, String, usize),
}

impl Disk {
    /// A real directory, all of it durable.
    pub(super) fn of(root: &Path) -> Self {
        let mut disk = Disk { root: root.to_owned(), nodes: Vec::new() };
        disk.load(root);
        disk
    }

    fn load(&mut self, path: &Path) -> usize {
        let index = self.nodes.len();
        if path.is_file() {
            let bytes = fs::read(path).unwrap();
            self.nodes.push(Node::File { written: bytes.clone(), synced: bytes });
            return index;
        }
        self.nodes.push(Node::Dir { durable: BTreeMap::new(), pending: Vec::new() });
        let mut names = BTreeMap::new();
        for entry in fs::read_dir(path).unwrap().map(|entry| entry.unwrap()) {
            names.insert(entry.file_name().into_string().unwrap(), self.load(&entry.path()));
        }
        self.nodes[index] = Node::Dir { durable: names, pending: Vec::new() };
        index
    }

    pub(super) fn carry_out(&mut self, operation: &Operation) {
        match operation {
            Operation::CreateDir(path) => {
                self.add(path, Node::Dir { durable: BTreeMap::new(), pending: Vec::new() });
            }
            Operation::Create(path) => self.add(path, Node::File { written: Vec::new(), synced: Vec::new() }),
            Operation::Write(path, bytes) => match self.node(path) {
                Node::File { written, .. } => written.extend_from_slice(bytes),
                Node::Dir { .. } => panic!("{path:?}"),
            },
            Operation::Sync(path) => match self.node(path) {
                Node::File { written, synced } => synced.clone_from(written),
                Node::Dir { .. } => panic!("{path:?}"),
            },
            Operation::Rename(from, to) => {
                let (node, to) = (self.find(from), name(to));
                self.change(from, Change::Rename(name(from), to, node));
            }
            Operation::SyncDir(path) => {
                let node = self.node(path);
                let names = names(node, |_| true);
                *node = Node::Dir { durable: names, pending: Vec::new() };
            }
            Operation::RemoveDir(path) => {
                let inside: Vec<String> = names(self.node(path), |_| true).into_keys().collect();
                for file in inside {
                    self.change(&path.join(&file), Change::Remove(file));
                }
                self.change(path, Change::Remove(name(path)));
            }
        }
    }

    /// Makes the tree that a power cut leaves, in a real directory.
    pub(super) fn after_a_power_cut(&self, outcome: Outcome, into: &Path) {
        let mut draws = match outcome {
            Outcome::Drawn(seed) => Draws(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            Outcome::Uniform(..) => Draws(1),
        };
        self.leave(0, outcome, &mut draws, into);
    }

    fn leave(&self, node: usize, outcome: Outcome, draws: &mut Draws, into: &Path) {
        match &self.nodes[node] {
            Node::File { written, synced } => {
                let data = match outcome {
                    Outcome::Uniform(data, _) => data,
                    Outcome::Drawn(_) => [Data::Lost, Data::Kept, Data::Half, Data::Zeros][draws.below(4)],
                };
                let unsynced = written.len() - synced.len();
                let bytes = match data {
                    Data::Lost => synced.clone(),
                    Data::Kept => written.clone(),
                    Data::Half => written[..synced.len() + unsynced / 2].to_vec(),
                    Data::Zeros => synced.iter().copied().chain(std::iter::repeat_n(0, unsynced)).collect(),
                };
                fs::write(into, bytes).unwrap();
            }
            directory => {
                let left = names(directory, |_| match outcome {
                    Outcome::Uniform(_, kept) => kept,
                    Outcome::Drawn(_) => draws.below(2) == 1,
                });
                fs::create_dir_all(into).unwrap();
                for (name, node) in left {
                    self.leave(node, outcome, draws, &into.join(name));
                }
            }
        }
    }

    fn add(&mut self, path: &Path, node: Node) {
        self.nodes.push(node);
        let index = self.nodes.len() - 1;
        self.change(path, Change::Add(name(path), index));
    }

    /// Notes a change in the directory that holds `path`.
    fn change(&mut self, path: &Path, change: Change) {
        match self.node(path.parent().unwrap()) {
            Node::Dir { pending, .. } => pending.push(change),
            Node::File { .. } => panic!("{path:?}"),
        }
    }

    fn node(&mut self, path: &Path) -> &mut Node {
        let index = self.find(path);
        &mut self.nodes[index]
    }

    fn find(&self, path: &Path) -> usize {
        path.strip_prefix(&self.root).unwrap().iter().fold(0, |node, part| {
            let names = names(&self.nodes[node], |_| true);
            *names.get(part.to_str().unwrap()).unwrap_or_else(|| panic!("{path:?} is not there"))
        })
    }
}

/// The names of a directory when only some of its pending changes came through.
fn names(node: &Node, mut kept: impl FnMut(&Change) -> bool) -> BTreeMap<String, usize> {
    let Node::Dir { durable, pending } = node else { panic!("not a directory") };
    let mut names = durable.clone();
    for change in pending.iter().filter(|change| kept(change)) {
        match change.clone() {
            Change::Add(name, node) => drop(names.insert(name, node)),
            Change::Remove(name) => drop(names.remove(&name)),
            // Both names at once: that is what a rename promises.
            Change::Rename(from, to, node) => {
                names.remove(&from);
                names.insert(to, node);
            }
        }
    }
    names
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Xorshift: any draws will do, as long as they are the same every time.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 33) % bound) as usize
    }
}
