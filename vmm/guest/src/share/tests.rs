use std::{
    collections::BTreeMap,
    os::unix::{
        fs::{FileExt, PermissionsExt, symlink},
        net::UnixListener,
    },
};

use super::*;

/// The image of a directory, read by the layout that Linux documents, apart from the writer.
struct Image(Vec<u8>);

/// A file of an image.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    mode: u32,
    owner: u32,
    time: u64,
    content: Vec<u8>,
}

impl Image {
    fn of(folder: &Path) -> Self {
        let image = Share::new(folder).image(&Progress::silent()).unwrap();
        let mut bytes = vec![0; image.metadata().unwrap().len() as usize];
        image.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes.len() % 4096, 0);
        Self(bytes)
    }

    fn number(&self, at: usize, bytes: usize) -> u64 {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(&self.0[at..at + bytes]);
        u64::from_le_bytes(number)
    }

    /// Returns an inode's mode, owner, time and content.
    fn inode(&self, number: u64) -> Found {
        let at = number as usize * 32;
        assert_eq!(self.number(at, 2), 1, "a long inode without inline content");
        let (size, block) = (self.number(at + 8, 8) as usize, self.number(at + 16, 4) as usize);
        Found {
            mode: self.number(at + 4, 2) as u32,
            owner: self.number(at + 24, 4) as u32,
            time: self.number(at + 32, 8),
            content: self.0[block * 4096..][..size].to_vec(),
        }
    }

    /// Returns all files by their paths. Folders have the number of their entries as content.
    fn files(&self) -> BTreeMap<String, Found> {
        assert_eq!(self.number(1024, 4), 0xe0f5_e1e2);
        assert_eq!(self.number(1024 + 36, 4) as usize * 4096, self.0.len());
        let root = self.number(1024 + 14, 2);
        let mut files = BTreeMap::new();
        self.add_folder("", root, root, &mut files);
        files
    }

    fn add_folder(&self, path: &str, folder: u64, above: u64, files: &mut BTreeMap<String, Found>) {
        let Found { mode, owner, time, content } = self.inode(folder);
        let mut entries = Vec::new();
        for block in content.chunks(4096) {
            let word = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]) as usize;
            let count = word(8) / 12;
            for entry in 0..count {
                let begin = word(entry * 12 + 8);
                let end = if entry + 1 < count { word(entry * 12 + 20) } else { block.len() };
                let name = String::from_utf8_lossy(&block[begin..end]).trim_end_matches('\0').to_owned();
                let inode = u64::from_le_bytes(block[entry * 12..][..8].try_into().unwrap());
                entries.push((name, inode, block[entry * 12 + 10]));
            }
        }
        assert!(entries.is_sorted(), "{path}: Linux searches for a name in halves");

        files.insert(
            format!("{path}/"),
            Found { mode, owner, time, content: entries.len().to_string().into() },
        );
        for (name, inode, kind) in entries {
            match (name.as_str(), kind) {
                (".", _) => assert_eq!(inode, folder),
                ("..", _) => assert_eq!(inode, above),
                (_, 2) => self.add_folder(&format!("{path}/{name}"), inode, folder, files),
                _ => drop(files.insert(format!("{path}/{name}"), self.inode(inode))),
            }
        }
    }
}

fn refusal(folder: &Path) -> String {
    Share::new(folder).image(&Progress::silent()).unwrap_err().to_string()
}

#[test]
fn image_has_files_folders_and_links_with_their_attributes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let long: Vec<u8> = (0..3 * 4096 + 5).map(|at: u32| (at * 7 / 3) as u8).collect();
    std::fs::create_dir_all(path("a/b")).unwrap();
    std::fs::write(path("a/b/long"), &long).unwrap();
    std::fs::write(path("-first"), "1").unwrap();
    std::fs::write(path("empty"), "").unwrap();
    std::fs::set_permissions(path("empty"), PermissionsExt::from_mode(0o4751)).unwrap();
    symlink("/no/such/place", path("a/link")).unwrap();
    let _socket = UnixListener::bind(path("socket")).unwrap();

    let files = Image::of(folder.path()).files();
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["/", "/-first", "/a/", "/a/b/", "/a/b/long", "/a/link", "/empty"]);
    assert_eq!(files["/a/b/long"].content, long);
    assert_eq!(files["/empty"].content, b"");
    assert_eq!(files["/empty"].mode, 0o100_000 | 0o4751);
    assert_eq!((files["/a/link"].mode, &files["/a/link"].content[..]), (0o120_777, &b"/no/such/place"[..]));
    assert_eq!(files["/a/"].mode & 0o170_000, 0o040_000);

    let metadata = path("-first").metadata().unwrap();
    let first = &files["/-first"];
    assert_eq!((first.owner, first.time), (metadata.uid(), metadata.mtime() as u64));
}

#[test]
fn folder_of_many_long_names_has_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..700 {
        let name = format!("{number}-{}", "x".repeat(number % 250));
        std::fs::write(folder.path().join(name), number.to_string()).unwrap();
    }

    let files = Image::of(folder.path()).files();
    assert_eq!(files["/"].content, b"702");
    for number in 0..700 {
        let name = format!("/{number}-{}", "x".repeat(number % 250));
        assert_eq!(files[&name].content, number.to_string().as_bytes());
    }
}

#[test]
fn clones_have_one_image_which_stays_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let share = Share::new(folder.path());
    let first = share.image(&Progress::silent()).unwrap();
    std::fs::write(folder.path().join("later"), "later").unwrap();

    let second = share.clone().image(&Progress::silent()).unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    assert!(Image::of(folder.path()).files().contains_key("/later"));
}

#[test]
fn what_is_no_directory_or_too_large_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    assert!(refusal(&file).contains("No such file"));
    File::create(&file).unwrap().set_len(MAX_BYTES + 1).unwrap();
    assert!(refusal(&file).contains("is no directory"));

    let text = refusal(folder.path());
    assert!(text.contains("more than 4 GiB") && text.contains("--vmm qemu"), "{text}");

    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir_all(folder.path().join("d/".repeat(MAX_DEPTH + 1))).unwrap();
    assert!(refusal(folder.path()).contains("in more than 64 folders"));
}

#[test]
fn cancelled_image_is_made_by_the_next_caller() {
    let folder = tempfile::tempdir().unwrap();
    let share = Share::new(folder.path());
    let cancelled = share.image(&Progress::silent().cancelled_by(|| true));
    assert!(matches!(cancelled, Err(GuestError::Cancelled)));
    share.image(&Progress::silent()).unwrap();
}

#[test]
fn file_that_changes_meanwhile_keeps_its_length() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    let mut buffer = [0; 3];
    for (content, copied) in [("ab", "ab"), ("abcdefgh", "abcde")] {
        std::fs::write(&source, content).unwrap();
        let mut image = tempfile::tempfile().unwrap();
        let done = copy(&source, 5, &mut image, &mut buffer, &Progress::silent());
        assert!(done.is_ok());
        assert_eq!(image.metadata().unwrap().len(), copied.len() as u64);
    }
}
