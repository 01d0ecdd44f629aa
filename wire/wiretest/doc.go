// Package wiretest is a peer that keeps to no protocol: it plays a script on a
// connection, so that a test can put a lying, stalling or babbling agent (or host)
// in front of the code that must survive it (threats T17 to T21).
//
// A script has one step a line. Empty lines and lines that begin with # are
// skipped; leading white space is not part of a step.
//
//	> TEXT             write TEXT and a newline
//	>> TEXT            write TEXT alone
//	< REGEXP           read a line, which must match; a named group is kept
//	bytes HEX          write bytes, white space between them allowed
//	repeat N TEXT      write TEXT N times, without a newline
//	garbage N SEED     write N pseudo-random bytes
//	drip DURATION TEXT write TEXT byte by byte, one each DURATION, and a newline
//	loop N             do all steps below N times in all
//	eof                read and drop everything until the peer closes
//	stall              do nothing more, neither reading nor writing
//	closewrite         end this direction alone
//	close              close the connection
//
// In TEXT, ${NAME} stands for what the group (?P<NAME>...) of an earlier < step
// matched, and Go's escapes \n, \r, \t, \0, \xHH and \\ work as written there.
// N may end in K, M or G for powers of 1024. After its last step the peer closes
// the connection. For example, an agent that answers a call for another:
//
//	< "id":(?P<id>\d+)
//	> {"jsonrpc":"2.0","id":${id}1,"result":{"pong":true}}
//	eof
package wiretest
