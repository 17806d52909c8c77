/* What all models share. `-DONLY=…` checks one property alone, so that a broken variant is refuted for the right reason. */
#ifndef ONLY
#define ONLY 0
#endif
#define PROPERTY(name, holds) assert((holds) || (ONLY != 0 && ONLY != name))
#define BIT(n) (1 << (n))
