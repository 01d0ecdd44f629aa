// Package vmtest holds drivers to the contract of package vm: TestDriver is one
// suite that every driver passes, real or not. It also offers two drivers for the
// tests of what stands on one: Fake, which is stricter than any real driver, and
// Faulty, which makes another fail where a test wants it.
package vmtest
