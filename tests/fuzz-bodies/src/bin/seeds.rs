//! Writes the first inputs of each body's test as a corpus: `seeds FOLDER COUNT`. A fuzzer that
//! starts from them need not first discover that long inputs get further than short ones. The names
//! of the bodies are printed, one a line.
#![allow(clippy::expect_used, reason = "a tool of tests")]

use std::{fs, path::Path};

use nicforge_fuzz_bodies::{BODIES, seed};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().expect("name the folder of the corpora");
    let count = arguments.next().and_then(|count| count.parse().ok()).expect("say how many inputs for each");

    for body in BODIES {
        println!("{}", body.name);
        let folder = Path::new(&folder).join(body.name);
        fs::create_dir_all(&folder).expect("the folder can be made");
        for (number, input) in seed::inputs(*body).take(count).enumerate() {
            fs::write(folder.join(format!("seed-{number}")), input).expect("the input can be written");
        }
    }
}
