//! Tests of the index of aliases, with trees of small modules.

use super::*;
use crate::modinfo::samples::module_file;

const CARD: PciIdentity = PciIdentity {
    vendor: 0x10ec,
    device: 0x8139,
    subsystem_vendor: 0x10ec,
    subsystem: 0x8139,
    class: 0x02_00_00,
};

/// A tree of modules, and a cache.
struct Rig {
    folder: tempfile::TempDir,
    cache: Cache,
}

impl Rig {
    fn new(modules: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(&folder.path().join("cache")).unwrap();
        let rig = Self { folder, cache };
        std::fs::create_dir(rig.root()).unwrap();

        modules.iter().for_each(|(name, alias)| rig.add(name, alias));
        rig
    }

    fn root(&self) -> std::path::PathBuf {
        self.folder.path().join("6.1")
    }

    fn add(&self, name: &str, alias: &str) {
        let object = module_file(&[&format!("alias={alias}"), "alias=usb:v1", "alias=char-major-1"]);
        std::fs::write(self.root().join(name), object).unwrap();
    }

    fn index(&self) -> AliasIndex {
        let tree = ModuleTree::open(&self.root()).unwrap();
        AliasIndex::of(&tree, &self.cache, &Progress::silent()).unwrap()
    }

    /// Returns the modules for [`CARD`].
    fn found(&self) -> Vec<String> {
        self.index().modules_for(&CARD).into_iter().map(str::to_owned).collect()
    }

    /// Returns the files of all indexes in the cache.
    fn files(&self) -> Vec<std::path::PathBuf> {
        let folders = std::fs::read_dir(self.cache.path(FOLDER)).unwrap();
        folders.map(|folder| folder.unwrap().path().join(FILE)).collect()
    }
}

#[test]
fn modules_that_match_come_in_the_kernels_order_without_others() {
    let rig = Rig::new(&[
        ("8139cp.ko", "pci:v000010ECd00008139sv*sd*bc*sc*i*"),
        ("8139too.ko", "pci:v000010ECd00008139sv*sd*bc*sc*i*"),
        ("8129.ko", "pci:v000010ECd00008129sv*sd*bc*sc*i*"),
        ("vfio-pci.ko", "vfio_pci:v*d*sv*sd*bc*sc*i*"),
    ]);
    std::fs::write(rig.root().join("modules.order"), "net/8139too.ko\nnet/8139cp.ko\n").unwrap();

    assert_eq!(rig.found(), ["8139too", "8139cp"]);
    assert_eq!(rig.index().entries.len(), 3);
}

#[test]
fn index_is_built_once_and_then_read_from_the_cache() {
    let rig = Rig::new(&[("a-b.ko", "pci:v000010ECd*sv*sd*bc*sc*i*")]);
    assert_eq!(rig.found(), ["a_b"]);

    // A forged index that does not follow from the modules shows that the file is read.
    let [file] = rig.files().try_into().unwrap();
    let key = file.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    let other = AliasIndex { entries: vec![Entry { alias: "pci:*".into(), module: "other".into() }] };
    std::fs::write(&file, other.to_text(&key)).unwrap();

    assert_eq!(rig.found(), ["other"]);
}

#[test]
fn damaged_index_is_rebuilt() {
    let rig = Rig::new(&[("a.ko", "pci:v000010ECd*sv*sd*bc*sc*i*")]);
    rig.index();
    let [file] = rig.files().try_into().unwrap();
    let whole = std::fs::read(&file).unwrap();

    let mut changed = whole.clone();
    let last = changed.len() - 3;
    changed[last] ^= 1;
    let too_long = vec![b'x'; MAX_SIZE as usize + 1];

    for damaged in [&whole[..whole.len() - 1], &changed, b"", b"\xff\xfe\n", &too_long] {
        std::fs::write(&file, damaged).unwrap();
        assert_eq!(rig.found(), ["a"]);
        assert_eq!(std::fs::read(&file).unwrap(), whole);
    }
}

#[test]
fn index_of_another_tree_is_not_taken() {
    let rig = Rig::new(&[("a.ko", "pci:v000010ECd*sv*sd*bc*sc*i*")]);
    rig.index();
    let [first] = rig.files().try_into().unwrap();

    // A changed tree has another key. The index under that key is the first tree's.
    rig.add("b.ko", "pci:v000010ECd00008139sv*sd*bc*sc*i*");
    assert_eq!(rig.found(), ["a", "b"]);
    let second = rig.files().into_iter().find(|file| *file != first).unwrap();
    std::fs::copy(&first, &second).unwrap();

    assert_eq!(rig.found(), ["a", "b"]);
}

#[test]
fn cache_keeps_a_few_indexes() {
    let rig = Rig::new(&[("a.ko", "pci:v000010ECd*sv*sd*bc*sc*i*")]);
    for number in 0..KEPT_INDEXES + 3 {
        rig.add(&format!("m{number}.ko"), "pci:*");
        assert_eq!(rig.found().len(), number + 2);
    }

    assert_eq!(rig.files().len(), KEPT_INDEXES);
}

#[test]
fn modules_alias_is_used_instead_of_the_modules() {
    let rig = Rig::new(&[("a.ko", "pci:v000010ECd*sv*sd*bc*sc*i*")]);
    let text = "# Aliases\nalias pci:v000010ECd00008139sv*sd*bc*sc*i* b-c\nalias usb:v1 d\nalias pci:x\n\
                alias virtio:d00000001v* virtio_net\n";
    std::fs::write(rig.root().join("modules.alias"), text).unwrap();

    assert_eq!(rig.found(), ["b_c"]);
    assert!(!rig.cache.path(FOLDER).exists());

    let network =
        PciIdentity { vendor: 0x1af4, device: 0x1041, subsystem_vendor: 0x1af4, subsystem: 0x1100, ..CARD };
    assert_eq!(rig.index().modules_for(&network), ["virtio_net"]);
}

#[test]
fn cancelled_index_leaves_nothing() {
    let rig = Rig::new(&[("a.ko", "pci:*")]);
    let tree = ModuleTree::open(&rig.root()).unwrap();
    let error = AliasIndex::of(&tree, &rig.cache, &Progress::silent().cancelled_by(|| true)).unwrap_err();

    assert!(matches!(error, GuestError::Cancelled), "{error}");
    assert!(!rig.cache.path(FOLDER).exists());
}
