//! Schemas: .proto text with its imports, or compiled descriptors.

use std::collections::HashMap;

use prost_reflect::prost::Message;
use prost_reflect::prost_types::{FileDescriptorProto, FileDescriptorSet};
use prost_reflect::{DescriptorPool, FileDescriptor, MessageDescriptor};
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};

use crate::base64;

use super::error::SchemaError;
use super::imports;

/// The files of a schema. One of them is its main file, whose messages the indexes in a record refer to.
#[derive(Debug, Clone)]
pub struct Schema {
    pool: DescriptorPool,
    main: String,
}

impl Schema {
    /// A schema as a registry has it: the text of a file, and those of the files that it imports. Each text is .proto, or
    /// a FileDescriptorProto in base64.
    pub fn from_text<'a>(
        text: &str,
        references: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, SchemaError> {
        let mut files = HashMap::new();
        for (name, text) in references {
            files.insert(name.to_owned(), open(name, text).map_err(|error| describe(&error))?);
        }
        // Registries do not keep the name of a file, and nothing imports this one.
        let mut name = "schema.proto".to_owned();
        while files.contains_key(&name) {
            name.insert(0, '_');
        }
        files.insert(name.clone(), open(&name, text).map_err(|error| describe(&error))?);
        compile(files, vec![name])
    }

    /// A FileDescriptorSet. The last file is the main one, because protoc puts imports before the files that import them.
    pub fn from_descriptors(bytes: &[u8]) -> Result<Self, SchemaError> {
        let set = FileDescriptorSet::decode(bytes)
            .map_err(|error| SchemaError(format!("the bytes are not a FileDescriptorSet: {error}")))?;
        let names: Vec<String> = set.file.iter().map(|file| file.name().to_owned()).collect();
        if names.is_empty() {
            return Err(SchemaError("the FileDescriptorSet has no file".to_owned()));
        }
        let files =
            set.file.into_iter().map(|file| (file.name().to_owned(), File::from_file_descriptor_proto(file)));
        compile(files.collect(), names)
    }

    fn main(&self) -> FileDescriptor {
        self.pool.get_file_by_name(&self.main).expect("the main file was compiled")
    }

    /// A message by its full name, or by its name in the main file. Without one, the first message of the main file.
    pub fn message(&self, name: Option<&str>) -> Result<MessageDescriptor, SchemaError> {
        let main = self.main();
        let Some(name) = name else {
            return main
                .messages()
                .next()
                .ok_or_else(|| SchemaError(format!("the schema {} has no message", self.main)));
        };
        let inside = || self.pool.get_message_by_name(&format!("{}.{name}", main.package_name()));
        self.pool.get_message_by_name(name).or_else(inside).ok_or_else(|| {
            let known: Vec<String> = main.messages().map(|message| message.full_name().to_owned()).collect();
            SchemaError(format!("the schema has no message {name}, but {}", known.join(", ")))
        })
    }

    /// The message with this path in the main file.
    pub fn message_at(&self, indexes: &[usize]) -> Option<MessageDescriptor> {
        let (first, nested) = indexes.split_first()?;
        let message = self.main().messages().nth(*first)?;
        nested.iter().try_fold(message, |message, index| message.child_messages().nth(*index))
    }

    /// The path of a message in the main file.
    pub fn indexes(&self, message: &str) -> Result<Vec<usize>, SchemaError> {
        let found = self.message(Some(message))?;
        if found.parent_file().name() != self.main {
            return Err(SchemaError(format!(
                "the message {message} is in {}, which the schema imports: records can only name messages of the \
                 schema itself",
                found.parent_file().name()
            )));
        }
        // A path in a descriptor alternates between the number of a list and an index in it.
        Ok(found.path().iter().skip(1).step_by(2).map(|index| *index as usize).collect())
    }

    /// All files as a FileDescriptorSet, the main one last.
    pub fn to_descriptors(&self) -> Vec<u8> {
        let (mut main, mut file): (Vec<_>, Vec<_>) =
            self.pool.file_descriptor_protos().cloned().partition(|file| file.name() == self.main);
        file.append(&mut main);
        FileDescriptorSet { file }.encode_to_vec()
    }

    /// The files that the main one needs and that are not built in, then the main one: name and FileDescriptorProto.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let (mut main, mut files): (Vec<_>, Vec<_>) = self
            .pool
            .file_descriptor_protos()
            .filter(|file| !is_built_in(file.name()))
            .map(|file| (file.name().to_owned(), file.encode_to_vec()))
            .partition(|(name, _)| *name == self.main);
        files.append(&mut main);
        files
    }
}

fn is_built_in(name: &str) -> bool {
    name.starts_with("google/protobuf/") || imports::get(name).is_some()
}

/// A file from its text. Its name is the one by which it is imported.
fn open(name: &str, text: &str) -> Result<File, protox::Error> {
    let mut bytes = Vec::new();
    let descriptor = base64::decode(text.trim().as_bytes(), &mut bytes);
    match descriptor.and_then(|()| FileDescriptorProto::decode(&bytes[..]).ok()) {
        Some(mut descriptor) => {
            descriptor.name = Some(name.to_owned());
            Ok(File::from_file_descriptor_proto(descriptor))
        }
        None => File::from_source(name, text),
    }
}

fn compile(files: HashMap<String, File>, names: Vec<String>) -> Result<Schema, SchemaError> {
    for file in files.values() {
        if file.file_descriptor_proto().syntax() == "editions" {
            return Err(SchemaError(format!(
                "{} uses an edition: proto2 and proto3 are supported",
                file.name()
            )));
        }
    }
    let main = names.last().cloned().unwrap_or_default();
    let mut resolver = ChainFileResolver::new();
    resolver.add(Given(files));
    resolver.add(GoogleFileResolver::new());
    let mut compiler = protox::Compiler::with_file_resolver(resolver);
    compiler.include_source_info(false);
    for name in &names {
        compiler.open_file(name).map_err(|error| describe(&error))?;
    }
    Ok(Schema { pool: compiler.descriptor_pool(), main })
}

fn describe(error: &protox::Error) -> SchemaError {
    let place = error.file().map(|file| format!("{file}: ")).unwrap_or_default();
    SchemaError(format!("{place}{error}"))
}

/// The files of the schema, and those that are built in besides Google's own.
struct Given(HashMap<String, File>);

impl FileResolver for Given {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match (self.0.get(name), imports::get(name)) {
            (Some(file), _) => Ok(file.clone()),
            (None, Some(text)) => File::from_source(name, text),
            (None, None) => Err(protox::Error::file_not_found(name)),
        }
    }
}
