//! An image of a read-only file system that Linux mounts (EROFS, since Linux 5.4).
//!
//! Nothing is compressed, and each file is in one piece. So an image is written once from its
//! beginning to its end, and files are copied without a look at their bytes.
//!
//! ```text
//!   block 0      superblock, at byte 1024
//!   block 1 ...  an inode of 64 bytes for each node, in their order
//!   then         contents, each from a block's beginning: entries of a folder, the target of a
//!                link, or the bytes of a file
//! ```

use std::{
    fs::File,
    io::{self, BufWriter, Seek, SeekFrom, Write},
};

use zerocopy::{
    Immutable, IntoBytes,
    little_endian::{U16, U32, U64},
};

/// Bytes of a block.
pub(super) const BLOCK: u64 = 4096;

/// The magic number of the file system, and the place of its superblock.
const MAGIC: u32 = 0xe0f5_e1e2;
const SUPERBLOCK_OFFSET: u64 = 1024;
/// The times of inodes are those of the last change of the content.
const TIMES_OF_CONTENT: u32 = 2;

/// Inodes are numbered by units of this many bytes from the image's beginning.
const INODE_UNIT: u64 = 32;
/// The inode's long version, whose content is in whole blocks.
const LONG_INODE: u16 = 1;
/// The first block with inodes. No inode has the number 0, which means an unused entry to programs.
const FIRST_INODE_BLOCK: u64 = 1;

/// Types of files in `st_mode`.
const MODE_FOLDER: u16 = 0o040_000;
const MODE_FILE: u16 = 0o100_000;
const MODE_LINK: u16 = 0o120_000;
/// The bits of `st_mode` beside the type.
const PERMISSIONS: u16 = 0o7777;
/// Types of files in a folder's entries.
const ENTRY_FILE: u8 = 1;
const ENTRY_FOLDER: u8 = 2;
const ENTRY_LINK: u8 = 7;

/// The root's index.
pub(super) const ROOT: usize = 0;

/// The superblock (Linux, fs/erofs/erofs_fs.h, as the other structures here).
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct SuperBlock {
    magic: U32,
    checksum: U32,
    feature_compat: U32,
    /// Binary logarithm of a block's bytes.
    block_bits: u8,
    /// Further units of 16 bytes behind the superblock.
    extension_slots: u8,
    /// Number of the root's inode.
    root: U16,
    /// Number of inodes.
    inodes: U64,
    /// Seconds and nanoseconds.
    build_time: [u8; 12],
    /// Number of blocks of the image.
    blocks: U32,
    /// The block from which inodes are numbered.
    metadata_block: U32,
    /// The block of extended attributes that inodes share.
    attributes_block: U32,
    uuid: [u8; 16],
    volume_name: [u8; 16],
    feature_incompat: U32,
    unused: [u8; 44],
}

/// An inode of the long version.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Inode {
    /// The version, and how the content is stored.
    format: U16,
    /// Size of the extended attributes.
    attributes: U16,
    mode: U16,
    unused: U16,
    /// Size of the content in bytes.
    size: U64,
    /// First block of the content.
    block: U32,
    /// The number for programs (`st_ino`) where a number has 32 bits.
    number: U32,
    owner: U32,
    group: U32,
    time: U64,
    nanoseconds: U32,
    /// Number of hard links.
    links: U32,
    reserved: [u8; 16],
}

/// A folder's entry, without the name.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct DirectoryEntry {
    /// Number of the node's inode.
    inode: U64,
    /// Offset of the name in the block.
    name_offset: U16,
    file_type: u8,
    reserved: u8,
}

/// Bytes of an inode, and of a folder's entry without its name.
const INODE: u64 = size_of::<Inode>() as u64;
const ENTRY: usize = size_of::<DirectoryEntry>();

/// The attributes of a file, folder or link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    /// The permissions, as in `st_mode`. Other bits do not count.
    pub(super) mode: u32,
    pub(super) owner: u32,
    pub(super) group: u32,
    /// Seconds since 1970 of the last change.
    pub(super) time: u64,
}

/// The content of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Folder,
    /// A file of this many bytes.
    File(u64),
    /// A symbolic link with its target.
    Link(Vec<u8>),
}

impl Content {
    /// Returns the type's bits in `st_mode`.
    fn mode(&self) -> u16 {
        match self {
            Self::Folder => MODE_FOLDER,
            Self::File(_) => MODE_FILE,
            Self::Link(_) => MODE_LINK,
        }
    }

    /// Returns the type in a folder's entry.
    fn file_type(&self) -> u8 {
        match self {
            Self::File(_) => ENTRY_FILE,
            Self::Folder => ENTRY_FOLDER,
            Self::Link(_) => ENTRY_LINK,
        }
    }
}

/// A file, a folder or a symbolic link.
#[derive(Debug)]
struct Node {
    /// Index of the folder that holds it. The root holds itself.
    folder: usize,
    name: Vec<u8>,
    attributes: Attributes,
    content: Content,
}

/// The nodes of a file system.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    /// Returns a tree that has a root alone.
    pub(super) fn new(root: Attributes) -> Self {
        Self {
            nodes: vec![Node { folder: ROOT, name: Vec::new(), attributes: root, content: Content::Folder }],
        }
    }

    /// Adds a node to a folder. Returns its index.
    pub(super) fn add(
        &mut self,
        folder: usize,
        name: &[u8],
        attributes: Attributes,
        content: Content,
    ) -> usize {
        self.nodes.push(Node { folder, name: name.to_vec(), attributes, content });
        self.nodes.len() - 1
    }

    /// Returns the number of nodes.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Writes the image to an empty file.
    ///
    /// `copy` writes the content of a file: it gets the file's index and its size, and writes from
    /// the image's position on. Bytes that it does not write are zero.
    pub(super) fn write<E: From<io::Error>>(
        &self,
        image: &mut File,
        mut copy: impl FnMut(usize, u64, &mut File) -> Result<(), E>,
    ) -> Result<(), E> {
        let bodies = self.bodies();
        let (blocks, end) = self.lay_out(&bodies);
        self.write_metadata(image, &bodies, &blocks, end)?;

        for (index, (body, block)) in bodies.iter().zip(&blocks).enumerate() {
            image.seek(SeekFrom::Start(block * BLOCK))?;
            match body {
                Body::Bytes(bytes) => image.write_all(bytes)?,
                Body::File(size) => copy(index, *size, image)?,
            }
        }

        image.set_len(end * BLOCK)?;
        Ok(())
    }

    /// Returns the content of each node.
    fn bodies(&self) -> Vec<Body> {
        // The nodes of each folder, by the folder's index. The root is the first node, and in no
        // folder.
        let mut held: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate().skip(1) {
            held[node.folder].push(index);
        }

        let bodies =
            self.nodes.iter().zip(held).enumerate().map(|(index, (node, held))| match &node.content {
                Content::Folder => Body::Bytes(self.folder_content(index, &held)),
                Content::File(size) => Body::File(*size),
                Content::Link(target) => Body::Bytes(target.clone()),
            });
        bodies.collect()
    }

    /// Returns the first block of each node's content, and the number of blocks of the image.
    fn lay_out(&self, bodies: &[Body]) -> (Vec<u64>, u64) {
        let mut next = FIRST_INODE_BLOCK + (self.nodes.len() as u64 * INODE).div_ceil(BLOCK);
        let mut first_block = |body: &Body| {
            let block = next;
            next += body.size().div_ceil(BLOCK);
            block
        };
        let blocks = bodies.iter().map(&mut first_block).collect();
        (blocks, next)
    }

    /// Writes the superblock and the inodes. `end` is the number of blocks of the image.
    fn write_metadata(&self, image: &mut File, bodies: &[Body], blocks: &[u64], end: u64) -> io::Result<()> {
        let mut out = BufWriter::new(image);
        out.seek(SeekFrom::Start(SUPERBLOCK_OFFSET))?;
        out.write_all(self.superblock(end).as_bytes())?;

        out.seek(SeekFrom::Start(FIRST_INODE_BLOCK * BLOCK))?;
        for (index, (body, block)) in bodies.iter().zip(blocks).enumerate() {
            out.write_all(self.inode(index, body.size(), *block).as_bytes())?;
        }
        out.flush()
    }

    /// Returns the superblock of an image of `blocks` blocks.
    fn superblock(&self, blocks: u64) -> SuperBlock {
        SuperBlock {
            magic: MAGIC.into(),
            checksum: 0.into(),
            feature_compat: TIMES_OF_CONTENT.into(),
            block_bits: BLOCK.ilog2() as u8,
            extension_slots: 0,
            root: (inode_number(ROOT) as u16).into(),
            inodes: (self.nodes.len() as u64).into(),
            build_time: [0; 12],
            blocks: (blocks as u32).into(),
            metadata_block: 0.into(),
            attributes_block: 0.into(),
            uuid: [0; 16],
            volume_name: [0; 16],
            feature_incompat: 0.into(),
            unused: [0; 44],
        }
    }

    /// Returns the inode of a node whose content has `size` bytes, from block number `block` on.
    fn inode(&self, index: usize, size: u64, block: u64) -> Inode {
        let Node { attributes, content, .. } = &self.nodes[index];
        Inode {
            format: LONG_INODE.into(),
            attributes: 0.into(),
            mode: (content.mode() | attributes.mode as u16 & PERMISSIONS).into(),
            unused: 0.into(),
            size: size.into(),
            block: (block as u32).into(),
            number: (index as u32 + 1).into(),
            owner: attributes.owner.into(),
            group: attributes.group.into(),
            time: attributes.time.into(),
            nanoseconds: 0.into(),
            // Programs take 1 as a folder's number of links for "not counted".
            links: 1.into(),
            reserved: [0; 16],
        }
    }

    /// Returns the content of a folder, with the nodes that it holds.
    ///
    /// Each block has entries and then their names, in the names' order. The last block ends with
    /// its last name.
    fn folder_content(&self, folder: usize, held: &[usize]) -> Vec<u8> {
        let entry = |&node: &usize| NamedNode { name: &self.nodes[node].name, node };
        let parent = self.nodes[folder].folder;
        let mut entries: Vec<_> = held.iter().map(entry).collect();
        entries.extend([NamedNode { name: b".", node: folder }, NamedNode { name: b"..", node: parent }]);
        entries.sort_unstable();

        let mut content = Vec::new();
        let mut rest = entries.as_slice();
        while !rest.is_empty() {
            let (block, later) = rest.split_at(count_in_one_block(rest));
            content.resize(content.len().next_multiple_of(BLOCK as usize), 0);
            self.add_entries(block, &mut content);
            rest = later;
        }
        content
    }

    /// Adds the entries of one block, and then their names.
    fn add_entries(&self, entries: &[NamedNode<'_>], content: &mut Vec<u8>) {
        let mut name_offset = entries.len() * ENTRY;
        for NamedNode { name, node } in entries {
            let entry = DirectoryEntry {
                inode: inode_number(*node).into(),
                name_offset: (name_offset as u16).into(),
                file_type: self.nodes[*node].content.file_type(),
                reserved: 0,
            };
            content.extend(entry.as_bytes());
            name_offset += name.len();
        }
        entries.iter().for_each(|entry| content.extend(entry.name));
    }
}

/// A node, as a folder's entry names it. Entries are sorted by name.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct NamedNode<'a> {
    name: &'a [u8],
    /// The node's index.
    node: usize,
}

/// The content of a node as it is in the image.
enum Body {
    /// The entries of a folder, or the target of a link.
    Bytes(Vec<u8>),
    /// The bytes of a file, which are copied when the image is written. It has this many.
    File(u64),
}

impl Body {
    /// Returns the number of bytes.
    fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(size) => *size,
        }
    }
}

/// Returns the number of a node's inode.
fn inode_number(index: usize) -> u64 {
    (FIRST_INODE_BLOCK * BLOCK + index as u64 * INODE) / INODE_UNIT
}

/// Returns how many entries the next block of a folder has room for: at least one, because a name
/// has at most 255 bytes.
fn count_in_one_block(entries: &[NamedNode<'_>]) -> usize {
    let mut used = 0;
    let fits = |entry: &&NamedNode<'_>| {
        used += ENTRY + entry.name.len();
        used <= BLOCK as usize
    };
    entries.iter().take_while(fits).count().max(1)
}
