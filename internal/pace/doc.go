// Package pace keeps background work out of the way of users' transactions. From the duration of a
// batch it computes the size of the next batch and the pause before it. On a busy database batches
// take longer, so the next batch is smaller and its pause longer. [Sleep] is a pause that ends with
// a context.
//
// The idea is that of River's job cleaner and of PostgreSQL's vacuum delay.
package pace
