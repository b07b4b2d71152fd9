// Package pace keeps work in the background out of the way of what users wait for: it says how
// large the next batch may be, and how long to leave the database alone after one, by how long the
// last one took. When the database is busy a batch takes longer, so the next one is smaller and the
// pause before it longer. [Sleep] is a pause that ends with a context.
//
// The idea is that of River's job cleaner and of PostgreSQL's vacuum delay.
package pace
