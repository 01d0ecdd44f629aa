// Package bouvet runs code that nobody trusts in sandboxes.
package bouvet
