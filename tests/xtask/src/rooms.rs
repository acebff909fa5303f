//! The rooms of the workspace (`docs/rooms.toml`): which crate may use which, and the picture of
//! it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{
    pictures::wrapped,
    steps::Failed,
    svg::{LINE, Svg},
};

/// The file that lists the rooms.
const SOURCE: &str = "docs/rooms.toml";
/// Folders whose crates are rooms. Tests may use everything.
const FOLDERS: [&str; 3] = ["device-model", "userlib", "vmm"];

/// The contents of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rooms {
    room: Vec<Room>,
}

/// A crate and the crates that it may use.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Room {
    #[serde(rename = "crate")]
    name: String,
    /// Row in the picture, the lowest first.
    level: Option<usize>,
    /// The text in the picture.
    holds: String,
    /// The crates that it uses.
    uses: Vec<String>,
    /// Modules in order: each may name only those before it.
    #[serde(default)]
    modules: Vec<String>,
}

/// Checks which crates each crate uses, and in which order modules name each other, against the
/// lists in `docs/rooms.toml`.
pub(crate) fn check(root: &Path) -> Result<(), Failed> {
    let rooms = read(root)?;
    let mut errors = Vec::new();
    let mut crates = BTreeMap::new();

    for folder in crate_folders(root)? {
        let (name, uses) = dependencies(&folder)?;
        let Some(room) = rooms.room.iter().find(|room| room.name == name) else {
            errors.push(format!("{name} is not listed: add it with the crates that it may use"));
            continue;
        };

        for used in uses.iter().filter(|used| !room.uses.contains(used)) {
            errors.push(format!("{name} uses {used}, which is not in its list"));
        }
        for unused in room.uses.iter().filter(|used| !uses.contains(*used)) {
            errors.push(format!("{name} does not use {unused}: remove it from the list"));
        }
        if !room.modules.is_empty() {
            errors.extend(check_modules(room, &folder.join("src"))?);
        }
        crates.insert(name, folder);
    }

    errors.extend(
        rooms
            .room
            .iter()
            .filter(|room| !crates.contains_key(&room.name))
            .map(|room| format!("{} does not exist", room.name)),
    );
    if errors.is_empty() { Ok(()) } else { Err(Failed::new(format!("{SOURCE}:\n{}", errors.join("\n")))) }
}

/// Reads the list of rooms.
fn read(root: &Path) -> Result<Rooms, Failed> {
    let path = root.join(SOURCE);
    let text = fs::read_to_string(&path).map_err(|error| failure_at(&path, &error))?;
    toml::from_str(&text).map_err(|error| failure_at(&path, &error))
}

/// Returns the failure at a file.
fn failure_at(path: &Path, error: &dyn std::fmt::Display) -> Failed {
    Failed::new(format!("{}: {error}", path.display()))
}

/// Returns the folders of all crates that are rooms.
fn crate_folders(root: &Path) -> Result<Vec<PathBuf>, Failed> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|folder| root.join(folder)).collect();

    while let Some(folder) = folders.pop() {
        if folder.join("Cargo.toml").exists() {
            found.push(folder.clone());
        }
        let entries = fs::read_dir(&folder).map_err(|error| failure_at(&folder, &error))?;
        folders.extend(
            entries
                .filter_map(Result::ok)
                .map(|entry| entry.path())
                .filter(|path| path.is_dir() && !path.ends_with("src") && !path.ends_with("target")),
        );
    }

    found.sort();
    Ok(found)
}

/// Returns the name of a crate and the workspace's crates that it uses outside its tests.
fn dependencies(folder: &Path) -> Result<(String, BTreeSet<String>), Failed> {
    #[derive(Deserialize)]
    struct Manifest {
        package: Package,
        #[serde(default)]
        dependencies: toml::Table,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
    }

    let path = folder.join("Cargo.toml");
    let text = fs::read_to_string(&path).map_err(|error| failure_at(&path, &error))?;
    let manifest: Manifest = toml::from_str(&text).map_err(|error| failure_at(&path, &error))?;
    let uses = manifest.dependencies.keys().filter(|name| name.starts_with("nicforge")).cloned().collect();

    Ok((manifest.package.name, uses))
}

/// Returns an error for each module of a crate that names a later one, or that is not listed.
fn check_modules(room: &Room, source: &Path) -> Result<Vec<String>, Failed> {
    let mut errors = Vec::new();
    let entries = fs::read_dir(source).map_err(|error| failure_at(source, &error))?;
    let mut files: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    files.sort();

    while let Some(path) = files.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).map_err(|error| failure_at(&path, &error))?;
            files.extend(entries.filter_map(Result::ok).map(|entry| entry.path()));
            continue;
        }

        let Some(module) = module_of(source, &path) else { continue };
        let Some(position) = room.modules.iter().position(|name| *name == module) else {
            errors.push(format!("{} has a module {module}, which is not in the list", room.name));
            continue;
        };

        let text = fs::read_to_string(&path).map_err(|error| failure_at(&path, &error))?;
        let allowed = &room.modules[..=position];
        let used_modules = modules_named_in(&text).into_iter().filter(|name| room.modules.contains(name));
        errors.extend(
            used_modules
                .filter(|name| !allowed.contains(name))
                .map(|name| format!("{}: {module} names {name}, which comes after it", room.name)),
        );
    }

    Ok(errors)
}

/// Returns the top module that a file belongs to; `None` for the crate's root and for tests.
fn module_of(source: &Path, path: &Path) -> Option<String> {
    let within = path.strip_prefix(source).ok()?;
    let is_test = path.file_stem()?.to_str()?.ends_with("tests");
    let first = Path::new(within.components().next()?.as_os_str());
    let module = first.file_stem()?.to_str()?;
    (!is_test && module != "lib").then(|| module.to_owned())
}

/// Returns the modules that a file names by `crate::`, outside its comments and tests.
fn modules_named_in(text: &str) -> BTreeSet<String> {
    let code: String = text
        .lines()
        .take_while(|line| *line != "#[cfg(test)]")
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();

    let mut found = BTreeSet::new();
    for (start, path) in code.match_indices("crate::") {
        let rest = &code[start + path.len()..];
        match rest.strip_prefix('{') {
            Some(list) => found.extend(names_in_list(list)),
            None => found.extend(identifier(rest)),
        }
    }
    found
}

/// Returns the first names of the paths in a list, up to the brace that closes it.
fn names_in_list(list: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let (mut depth, mut is_start) = (0, true);
    for (index, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_start = true,
            _ if is_start && depth == 0 && !character.is_whitespace() => {
                is_start = false;
                found.extend(identifier(&list[index..]));
            }
            _ => {}
        }
    }
    found
}

/// Returns the identifier at the start of a text.
fn identifier(text: &str) -> Option<String> {
    let end = text.find(|character: char| !character.is_alphanumeric() && character != '_');
    let name = &text[..end.unwrap_or(text.len())];
    (!name.is_empty()).then(|| name.to_owned())
}

/// Width and height of a box in the picture, in pixels.
const BOX_WIDTH: usize = 172;
const BOX_HEIGHT: usize = 58;
/// Space between boxes, across and down.
const GAP_ACROSS: usize = 16;
const GAP_DOWN: usize = 44;
/// Maximum number of characters in a line of a box's text.
const TEXT_WIDTH: usize = 26;

/// Returns the picture: a box for each room, and lines to the rooms that it uses. A room that it
/// also uses through another room gets no line.
pub(crate) fn draw(root: &Path) -> Result<String, Failed> {
    let rooms = read(root)?;
    let drawn: Vec<_> = rooms.room.iter().filter(|room| room.level.is_some()).collect();
    let levels = drawn.iter().filter_map(|room| room.level).max().map_or(0, |top| top + 1);
    let rows: Vec<Vec<&Room>> = (0..levels)
        .rev()
        .map(|level| drawn.iter().copied().filter(|room| room.level == Some(level)).collect())
        .collect();

    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = columns * (BOX_WIDTH + GAP_ACROSS) + GAP_ACROSS;
    let mut positions = BTreeMap::new();
    for (row, rooms) in rows.iter().enumerate() {
        // The boxes of a row are in the middle of the picture.
        let left = (width + GAP_ACROSS - rooms.len() * (BOX_WIDTH + GAP_ACROSS)) / 2;
        for (column, room) in rooms.iter().enumerate() {
            let x = left + column * (BOX_WIDTH + GAP_ACROSS);
            let y = GAP_DOWN / 2 + row * (BOX_HEIGHT + GAP_DOWN);
            positions.insert(room.name.as_str(), (x, y));
        }
    }

    let mut svg = Svg::new();
    for room in &drawn {
        for used in direct_uses(room, &rooms) {
            if let (Some(from), Some(to)) = (positions.get(room.name.as_str()), positions.get(used)) {
                let bottom = (from.0 + BOX_WIDTH / 2, from.1 + BOX_HEIGHT);
                let top = (to.0 + BOX_WIDTH / 2, to.1);
                svg.line(bottom, top, "stroke-opacity=\"0.5\"");
            }
        }
    }
    for room in &drawn {
        let Some(&(x, y)) = positions.get(room.name.as_str()) else { continue };
        svg.rect((x, y), (BOX_WIDTH, BOX_HEIGHT), "#eef3f8");
        svg.bold((x + 8, y + 18), room.name.strip_prefix("nicforge-").unwrap_or(&room.name));
        for (index, line) in wrapped(&room.holds, TEXT_WIDTH).iter().enumerate() {
            svg.text((x + 8, y + 35 + LINE * index), line);
        }
    }

    let title = "The rooms of nicforge: a line goes from a room to one below that it uses";
    Ok(svg.finish(title, (width, rows.len() * (BOX_HEIGHT + GAP_DOWN))))
}

/// Returns the rooms that a room uses, without those that it also uses through another room.
fn direct_uses<'a>(room: &'a Room, rooms: &Rooms) -> Vec<&'a str> {
    let is_used_through = |between: &String, used: &String| {
        rooms.room.iter().any(|other| other.name == *between && reaches(other, used, rooms))
    };
    room.uses
        .iter()
        .filter(|used| !room.uses.iter().any(|other| other != *used && is_used_through(other, used)))
        .map(String::as_str)
        .collect()
}

/// Returns whether a room uses another one, directly or through others.
fn reaches(room: &Room, target: &String, rooms: &Rooms) -> bool {
    room.uses.contains(target)
        || rooms.room.iter().any(|other| room.uses.contains(&other.name) && reaches(other, target, rooms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_lists_and_paths_and_not_in_comments() {
        let text = "use crate::{\n    a::{B, C},\n    d,\n};\n// crate::e\nfn f() { crate::g::h(); }\n\
                    #[cfg(test)]\nmod tests { use crate::i; }\n";
        assert_eq!(modules_named_in(text).into_iter().collect::<Vec<_>>(), ["a", "d", "g"]);
    }

    #[test]
    fn a_use_through_another_room_is_not_drawn() {
        let room = |name: &str, uses: &[&str]| Room {
            name: name.to_owned(),
            level: Some(0),
            holds: String::new(),
            uses: uses.iter().map(|&used| used.to_owned()).collect(),
            modules: Vec::new(),
        };
        let rooms = Rooms { room: vec![room("a", &[]), room("b", &["a"]), room("c", &["a", "b"])] };

        assert_eq!(direct_uses(&rooms.room[2], &rooms), ["b"]);
    }
}
