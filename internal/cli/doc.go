// Package cli is the command line of Bouvet: one file a command.
//
// The rules of its output:
//
//   - Standard output carries what was asked for and nothing else: the output of
//     the command in the sandbox byte for byte, a table, or with --json one object.
//   - Everything else goes to standard error, prefixed "bouvet: ", without a capital
//     at the beginning or a period at the end. A second line, "try: ", says what to
//     do about it.
//   - Text that a guest, an image or a file name on the host could have chosen is
//     never printed as it is, except the command's own output stream: control
//     characters are escaped and the length is capped (threats T23, T51).
//   - Colours and redrawn lines appear only on a terminal, and none are needed to
//     understand what is said.
//
// A command is a struct with its flags. It reaches the outside through a world
// alone, so tests run whole command lines in-process.
package cli
